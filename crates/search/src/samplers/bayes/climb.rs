//! Climbing a smooth function inside the unit cube.
//!
//! Design note: argmin's quasi-Newton methods know no bounds, and the best settings often lie on them; a projected BFGS
//! over the few continuous coordinates is short, and its dense matrix is tiny.

/// Steps of one climb.
const STEPS: usize = 25;
/// Times that one step is shortened.
const HALVINGS: usize = 8;
/// Largest first move along one coordinate.
const FIRST_MOVE: f64 = 0.1;
/// Share of the linear gain that a step must reach (Armijo).
const SUFFICIENT: f64 = 1e-4;
/// Gain below which a climb ends.
const LEAST_GAIN: f64 = 1e-7;

/// Climbs from `start` along the coordinates `free`, each kept in [0, 1]; `value` gives the function and its gradient.
/// Returns the best point and its value.
pub(super) fn climb(start: &[f64], free: &[usize], value: impl Fn(&Vec<f64>) -> (f64, Vec<f64>)) -> (Vec<f64>, f64) {
    let mut here = Foothold::at(start.to_vec(), free, &value);
    let mut curvature = Inverse::identity(free.len());
    for _ in 0..STEPS {
        let blocked: Vec<bool> = free
            .iter()
            .zip(&here.slope)
            .map(|(index, slope)| is_blocked(here.point[*index], *slope))
            .collect();
        let Some(direction) = curvature.direction(&here.slope, &blocked) else {
            break;
        };
        let Some(next) = here.step(free, &direction, &value) else {
            break;
        };
        let moved: Vec<f64> = free
            .iter()
            .map(|index| next.point[*index] - here.point[*index])
            .collect();
        let bend: Vec<f64> = here
            .slope
            .iter()
            .zip(&next.slope)
            .map(|(before, after)| before - after)
            .collect();
        let gain = next.height - here.height;
        here = next;
        curvature.learn(&moved, &bend);
        if gain < LEAST_GAIN {
            break;
        }
    }
    (here.point, here.height)
}

/// Whether a coordinate stands at a bound that the function rises across.
fn is_blocked(coordinate: f64, slope: f64) -> bool {
    (coordinate <= 0.0 && slope <= 0.0) || (coordinate >= 1.0 && slope >= 0.0)
}

/// A point that a climb has reached.
struct Foothold {
    point: Vec<f64>,
    height: f64,
    /// Gradient along the free coordinates.
    slope: Vec<f64>,
}

impl Foothold {
    fn at(point: Vec<f64>, free: &[usize], value: &impl Fn(&Vec<f64>) -> (f64, Vec<f64>)) -> Self {
        let (height, gradient) = value(&point);
        Self {
            point,
            height,
            slope: free.iter().map(|index| gradient[*index]).collect(),
        }
    }

    /// The first of ever shorter moves along `direction` that rises enough.
    fn step(&self, free: &[usize], direction: &[f64], value: &impl Fn(&Vec<f64>) -> (f64, Vec<f64>)) -> Option<Self> {
        let mut length = 1.0;
        for _ in 0..HALVINGS {
            let mut next = self.point.clone();
            for (index, direction) in free.iter().zip(direction) {
                next[*index] = (self.point[*index] + length * direction).clamp(0.0, 1.0);
            }
            let expected: f64 = free
                .iter()
                .zip(&self.slope)
                .map(|(index, slope)| slope * (next[*index] - self.point[*index]))
                .sum();
            if expected <= 0.0 {
                return None;
            }
            let next = Self::at(next, free, value);
            if next.height >= self.height + SUFFICIENT * expected {
                return Some(next);
            }
            length *= 0.3;
        }
        None
    }
}

/// BFGS estimate of the inverse of minus the Hessian.
struct Inverse {
    size: usize,
    values: Vec<f64>,
    fresh: bool,
}

impl Inverse {
    fn identity(size: usize) -> Self {
        let mut values = vec![0.0; size * size];
        for index in 0..size {
            values[index * size + index] = 1.0;
        }
        Self {
            size,
            values,
            fresh: true,
        }
    }

    /// The direction of the next move, blocked coordinates left out; `None` on a summit.
    fn direction(&mut self, slope: &[f64], blocked: &[bool]) -> Option<Vec<f64>> {
        let open: Vec<f64> = slope
            .iter()
            .zip(blocked)
            .map(|(slope, blocked)| if *blocked { 0.0 } else { *slope })
            .collect();
        let steepest = open.iter().fold(0.0f64, |most, slope| most.max(slope.abs()));
        if !steepest.is_finite() || steepest < 1e-12 {
            return None;
        }
        let row = |i: usize| -> f64 {
            let products = (0..self.size).map(|j| self.values[i * self.size + j] * open[j]);
            if blocked[i] { 0.0 } else { products.sum() }
        };
        let direction: Vec<f64> = (0..self.size).map(row).collect();
        let rise: f64 = direction.iter().zip(&open).map(|(d, s)| d * s).sum();
        if self.fresh || rise <= 0.0 {
            *self = Self::identity(self.size);
            return Some(open.iter().map(|slope| slope * FIRST_MOVE / steepest).collect());
        }
        Some(direction)
    }

    /// The BFGS update (Nocedal and Wright 2006, equation 6.17) from a move and how much the slope fell along it.
    fn learn(&mut self, moved: &[f64], bend: &[f64]) {
        let curvature: f64 = moved.iter().zip(bend).map(|(s, y)| s * y).sum();
        let bends: f64 = bend.iter().map(|y| y * y).sum();
        if curvature <= 1e-12 * bends.max(1e-300) {
            return;
        }
        let n = self.size;
        if self.fresh {
            // The first estimate has the scale of the first move.
            for index in 0..n {
                self.values[index * n + index] = curvature / bends;
            }
            self.fresh = false;
        }
        let image: Vec<f64> = (0..n)
            .map(|i| (0..n).map(|j| self.values[i * n + j] * bend[j]).sum())
            .collect();
        let between: f64 = bend.iter().zip(&image).map(|(y, h)| y * h).sum();
        let along = (1.0 + between / curvature) / curvature;
        for i in 0..n {
            for j in 0..n {
                let cross = image[i] * moved[j] + moved[i] * image[j];
                self.values[i * n + j] += along * moved[i] * moved[j] - cross / curvature;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_finds_a_summit_inside_and_on_the_bounds() {
        // A tilted, badly scaled paraboloid with its top at (0.3, 1.4): on the bound x1 = 1 the best x0 is elsewhere.
        let value = |x: &Vec<f64>| {
            let (a, b) = (x[0] - 0.3, x[1] - 1.4);
            let height = -(50.0 * a * a + b * b + 2.0 * a * b);
            (height, vec![-100.0 * a - 2.0 * b, -2.0 * b - 2.0 * a, 99.0])
        };
        let (at, height) = climb(&[0.9, 0.1, 0.5], &[0, 1], value);
        assert!((at[0] - 0.308).abs() < 1e-4 && at[1] == 1.0 && at[2] == 0.5, "{at:?}");
        assert!((height - value(&at).0).abs() < 1e-12);
        let (at, _) = climb(&[0.9, 0.1, 0.5], &[0], value);
        assert!((at[0] - 0.326).abs() < 1e-4 && at[1] == 0.1);
    }

    #[test]
    fn nothing_to_climb_leaves_the_start() {
        assert_eq!(climb(&[0.2], &[], |_| (3.0, vec![1.0])), (vec![0.2], 3.0));
        assert_eq!(climb(&[0.2], &[0], |_| (f64::NEG_INFINITY, vec![0.0])).0, [0.2]);
    }
}
