//! Exact Gaussian processes over encoded params.
//!
//! | name | meaning |
//! |---|---|
//! | x, X | a point; the training points |
//! | k, K | covariance kernel; its matrix over X, noise included |
//! | L | lower Cholesky factor, K = L L^T |
//! | theta_d = 1 / l_d^2 | inverse square of axis d's lengthscale |
//! | r^2 | sum over axes of theta_d times the squared distance on axis d |
//! | q_d, a_d | kernel of axis d alone; its variance ("weight") |
//! | s^2, sigma^2 | signal variance of all axes together; noise variance |
//! | mu, alpha | constant mean; K^-1 (y - mu) |

mod censored;
mod covariance;
mod fit;
#[cfg(test)]
mod golden {
    include!("../../../../tests/golden/search/gp.rs");
}
mod hyper;
mod posterior;

pub(super) use censored::{Bound, imputed};
pub(super) use covariance::{dot, matern};
pub(super) use fit::{Effort, Fit, FitInput, fit};
pub(super) use posterior::{Gp, Slope};
