//! The 8-bit dynamic map (arXiv:1511.04561, as in bitsandbytes): 256 values of [-1, 1] or [0, 1].
//!
//! The values lie in seven decades below 1; each decade has twice as many as the one below it, at the midpoints of equal
//! parts of [0.1, 1] times the decade. Zero and one are added. Small numbers thus keep a small *relative* error.

use std::sync::LazyLock;

const DECADES: i32 = 7;

/// A sorted table of 256 values and the bounds between them.
#[derive(Clone, Debug)]
pub struct DynamicMap {
    values: [f32; 256],
    /// Midpoints between neighbours; the last is infinite.
    bounds: [f32; 256],
    /// Code of the lowest value whose upper sixteen bits are the index. No such range of values holds two bounds.
    by_upper_half: Vec<u8>,
}

static SIGNED: LazyLock<DynamicMap> = LazyLock::new(|| DynamicMap::new(true));
static UNSIGNED: LazyLock<DynamicMap> = LazyLock::new(|| DynamicMap::new(false));

impl DynamicMap {
    /// The map of [-1, 1], whose lowest value is -0.993.
    pub fn signed() -> &'static Self {
        &SIGNED
    }

    /// The map of [0, 1].
    pub fn unsigned() -> &'static Self {
        &UNSIGNED
    }

    fn new(signed: bool) -> Self {
        let mut all = vec![0.0f32, 1.0];
        for decade in 0..DECADES {
            let parts = if signed { 1 << decade } else { 2 << decade };
            let scale = 10f64.powi(decade - (DECADES - 1)) as f32;
            for part in 0..parts {
                let value = scale * midpoint(part, parts);
                all.push(value);
                if signed {
                    all.push(-value);
                }
            }
        }
        all.sort_by(f32::total_cmp);
        let mut values = [0.0; 256];
        values.copy_from_slice(&all);
        let mut bounds = [f32::INFINITY; 256];
        for (bound, pair) in bounds.iter_mut().zip(values.windows(2)) {
            *bound = (pair[0] + pair[1]) / 2.0;
        }
        let lowest = |upper: u32| {
            // Below zero, a longer mantissa is a lower value.
            let is_negative = upper >> 15 == 1;
            f32::from_bits(upper << 16 | if is_negative { 0xffff } else { 0 })
        };
        let code = |value: f32| bounds.partition_point(|bound| *bound < value).min(255) as u8;
        Self {
            values,
            bounds,
            by_upper_half: (0..1 << 16).map(|upper| code(lowest(upper))).collect(),
        }
    }

    /// The values by code, ascending.
    pub fn values(&self) -> &[f32; 256] {
        &self.values
    }

    /// The bounds between neighbouring values by code, ascending; the last is infinite.
    pub fn bounds(&self) -> &[f32; 256] {
        &self.bounds
    }

    /// Code of zero.
    pub fn zero(&self) -> u8 {
        self.values.partition_point(|value| *value < 0.0) as u8
    }

    /// Largest value whose nearest is zero: half of the smallest value above it.
    pub fn most_of_zero(&self) -> f32 {
        self.bounds[usize::from(self.zero())]
    }

    /// Code of the value nearest to `value`; the lower one of two equally near.
    #[inline]
    pub fn nearest(&self, value: f32) -> u8 {
        let code = self.by_upper_half[(value.to_bits() >> 16) as usize];
        code + u8::from(value > self.bounds[usize::from(code)])
    }

    /// Finds the code of [`nearest`](Self::nearest) after rounding `value` to the nearest of 65536 equal steps of [-1,
    /// 1]: what bitsandbytes' CPU kernel finds, up to one code beside the nearest.
    pub fn nearest_on_grid(&self, value: f32) -> u8 {
        let unit = (value.clamp(-1.0, 1.0) + 1.0) * 0.5;
        let step = unit.mul_add(65535.0, 0.5) as u32;
        self.nearest(step as f32 * 2.0 / 65535.0 - 1.0)
    }
}

/// Middle of part `part` of [0.1, 1] cut into `parts`, rounded as torch.linspace and a mean in F32 round it.
fn midpoint(part: usize, parts: usize) -> f32 {
    let step = (1.0f32 - 0.1) / parts as f32;
    let boundary = |index: usize| {
        // Fused as torch's vectorised kernel, from the nearer end.
        if index < parts.div_ceil(2) {
            step.mul_add(index as f32, 0.1)
        } else {
            (-step).mul_add((parts - index) as f32, 1.0)
        }
    };
    (boundary(part) + boundary(part + 1)) / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn maps_are_sorted_and_hold_zero_and_one() {
        for map in [DynamicMap::signed(), DynamicMap::unsigned()] {
            assert!(map.values.is_sorted_by(|a, b| a < b));
            assert_eq!((map.values[map.zero() as usize], map.values[255]), (0.0, 1.0));
        }
        assert_eq!((DynamicMap::signed().zero(), DynamicMap::unsigned().zero()), (127, 0));
    }

    #[test]
    fn zero_stands_for_the_values_up_to_half_of_the_smallest() {
        for map in [DynamicMap::signed(), DynamicMap::unsigned()] {
            let (zero, most) = (map.zero(), map.most_of_zero());
            assert_eq!(most, map.values[usize::from(zero) + 1] / 2.0);
            assert_eq!((map.nearest(most), map.nearest(most * 1.0001)), (zero, zero + 1));
        }
    }

    proptest! {
        #[test]
        fn no_value_is_nearer(bits in any::<u32>(), signed in any::<bool>()) {
            // Any float in [-1, 1], the tiny ones as often as the large ones.
            let value = f32::from_bits(bits);
            prop_assume!(value.abs() <= 1.0 && (signed || value >= 0.0));
            let map = if signed { DynamicMap::signed() } else { DynamicMap::unsigned() };
            let distance = |code: u8| (map.values[code as usize] - value).abs();
            let least = (0..=255).map(distance).fold(f32::INFINITY, f32::min);
            prop_assert_eq!(distance(map.nearest(value)), least);
        }
    }
}
