//! One source, several instruction sets.
//!
//! Release builds target plain x86-64, that is SSE2. [`multiversion!`] compiles a function a second and a third time with
//! AVX2 and AVX-512 enabled and picks one when it is called; the body is ordinary Rust that the compiler vectorises, so
//! that the portable form is the same code. A body can ask the constant `FMA` whether a fused multiply-add is one
//! instruction ([`multiply_add`]): where it is not, the library function behind it would be slower than anything else. Sums in such a body run in [`LANES`] lanes, since the compiler may not
//! reorder float additions by itself.

/// Lanes that sums run in: the F32 values of one AVX-512 register.
pub(super) const LANES: usize = 16;

/// a b + c, rounded once where `FMA`.
#[inline(always)]
pub(super) fn multiply_add<const FMA: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FMA { a.mul_add(b, c) } else { a * b + c }
}

/// Level of the processor's instructions, among those that the ops make use of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    Portable,
    Avx2,
    Avx512,
}

/// The level of this processor; detection is cached by the standard library.
#[inline]
pub(super) fn level() -> Level {
    #[cfg(target_arch = "x86_64")]
    {
        let avx2 =
            is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
        if avx2
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
        {
            return Level::Avx512;
        }
        if avx2 {
            return Level::Avx2;
        }
    }
    Level::Portable
}

/// Compiles a function for each [`Level`] and calls the best one. Everything that the body calls in its hot loop must be
/// `#[inline(always)]`, or it is compiled for the portable level; so is a closure that the compiler finds too large to
/// inline, hence plain loops around exp and its kin.
macro_rules! multiversion {
    (
        $(#[$meta:meta])*
        $vis:vis fn $name:ident $(<$($t:ident: $bound:path),+>)? ($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block
    ) => {
        $(#[$meta])*
        $vis fn $name $(<$($t: $bound),+>)? ($($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            fn portable<const FMA: bool $($(, $t: $bound)+)?>($($arg: $ty),*) $(-> $ret)? $body

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            fn avx2 $(<$($t: $bound),+>)? ($($arg: $ty),*) $(-> $ret)? {
                portable::<true $($(, $t)+)?>($($arg),*)
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
            fn avx512 $(<$($t: $bound),+>)? ($($arg: $ty),*) $(-> $ret)? {
                portable::<true $($(, $t)+)?>($($arg),*)
            }

            match $crate::ops::simd::level() {
                // SAFETY: the processor has the features that the function is compiled for.
                #[cfg(target_arch = "x86_64")]
                $crate::ops::simd::Level::Avx512 => unsafe { avx512($($arg),*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                $crate::ops::simd::Level::Avx2 => unsafe { avx2($($arg),*) },
                _ => portable::<false $($(, $t)+)?>($($arg),*),
            }
        }
    };
}
pub(super) use multiversion;

/// Defines the sum of a term over the elements of slices of one length, in lanes.
macro_rules! sum_over {
    ($(#[$meta:meta])* $name:ident: $($slice:ident: $element:ident),+) => {
        $(#[$meta])*
        #[inline(always)]
        pub(super) fn $name<$($element: Copy),+>($($slice: &[$element]),+, term: impl Fn($($element),+) -> f32) -> f32 {
            let len = [$($slice.len()),+].into_iter().min().unwrap_or(0);
            $(let $slice = &$slice[..len];)+
            let mut lanes = [0f32; LANES];
            // Whole arrays: the compiler does not see through index arithmetic that they are in bounds.
            let (blocks, whole) = (len / LANES, len / LANES * LANES);
            {
                $(let mut $slice = $slice.as_chunks::<LANES>().0.iter();)+
                for _ in 0..blocks {
                    let ($(Some($slice),)+) = ($($slice.next(),)+) else { break };
                    for lane in 0..LANES {
                        lanes[lane] += term($($slice[lane]),+);
                    }
                }
            }
            for index in whole..len {
                lanes[index - whole] += term($($slice[index]),+);
            }
            add_lanes(lanes)
        }
    };
}

sum_over!(
    /// Sum of `term` over a slice.
    sum: a: A
);
sum_over!(
    /// Sum of `term` over two slices.
    sum2: a: A, b: B
);
sum_over!(
    /// Sum of `term` over three slices.
    sum3: a: A, b: B, c: C
);

/// Pairwise, so that the error does not grow with the lanes.
#[inline(always)]
fn add_lanes(mut lanes: [f32; LANES]) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            lanes[lane] += lanes[lane + width];
        }
        width /= 2;
    }
    lanes[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    multiversion! {
        /// Doubles every value.
        fn double(values: &mut [f32], by: f32) -> usize {
            for value in values.iter_mut() {
                *value *= by;
            }
            values.len()
        }
    }

    #[test]
    fn every_level_runs_the_same_body() {
        let mut values = [1.0, 2.0, 3.0];
        assert_eq!(double(&mut values, 2.0), 3);
        assert_eq!(values, [2.0, 4.0, 6.0]);
    }

    #[test]
    fn a_sum_takes_every_element_once() {
        for len in [0, 1, 15, 16, 17, 100] {
            let values: Vec<f32> = (0..len).map(|index| index as f32).collect();
            let expected = (0..len).sum::<usize>() as f32;
            assert_eq!(sum(&values, |value| value), expected);
            assert_eq!(sum2(&values, &vec![2.0; len], |a: f32, b: f32| a * b), 2.0 * expected);
            assert_eq!(
                sum3(&values, &vec![2.0; len], &vec![1.0; len], |a: f32, b: f32, c: f32| a
                    * b
                    + c),
                2.0 * expected + len as f32
            );
        }
    }
}
