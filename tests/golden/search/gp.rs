// Made by gp.py with scikit-learn 1.9.1.
pub(super) const GOLDEN_POINTS: [[f64; 2]; 12] = [[0.637, 0.27], [0.041, 0.017], [0.813, 0.913], [0.607, 0.729], [0.544, 0.935], [0.816, 0.003], [0.857, 0.034], [0.73, 0.176], [0.863, 0.541], [0.3, 0.423], [0.028, 0.124], [0.671, 0.647]];
pub(super) const GOLDEN_TARGETS: [f64; 12] = [-1.0562, -0.2562, -0.6527, -0.4483, 0.2521, -1.4832, -1.408, -1.4143, -1.1009, 0.6528, -0.3174, -0.8549];
pub(super) const GOLDEN_LENGTHSCALES: [f64; 2] = [0.4, 0.9];
pub(super) const GOLDEN_WEIGHTS: [f64; 2] = [0.2, 0.05];
pub(super) const GOLDEN_VARIANCE: f64 = 1.3;
pub(super) const GOLDEN_NOISE: f64 = 0.0001;
pub(super) const GOLDEN_QUERIES: [[f64; 2]; 7] = [[0.615, 0.384], [0.997, 0.981], [0.686, 0.65], [0.688, 0.389], [0.135, 0.721], [0.638, 0.271], [1.5, -0.5]];
/// Mean and standard deviation of the noise-free function at each query.
pub(super) const GOLDEN_PREDICTIONS: [(f64, f64); 7] = [(-0.8757897605996057, 0.06268716716348803), (-0.4758085402922738, 0.4656935111680398), (-0.898379325463436, 0.01781096062015254), (-1.1784441374563812, 0.06987103474087282), (0.4985816569435203, 0.49032993776436296), (-1.0604412529121845, 0.009974095990650068), (-0.19742582717739277, 1.1630415305778905)];
pub(super) const GOLDEN_EVIDENCE_WITH_MEAN: f64 = -2.0536821542033348;
/// Optimizer, and for the third of them momentum and variant.
pub(super) type Setting = (usize, Option<f64>, Option<usize>);
pub(super) const GOLDEN_MIXED: [Setting; 14] = [(2, Some(0.31), Some(1)), (1, None, None), (1, None, None), (2, Some(0.934), Some(1)), (1, None, None), (1, None, None), (2, Some(0.322), Some(1)), (2, Some(0.338), Some(1)), (2, Some(0.89), Some(0)), (0, None, None), (0, None, None), (2, Some(0.084), Some(1)), (1, None, None), (2, Some(0.787), Some(0))];
pub(super) const GOLDEN_MIXED_TARGETS: [f64; 14] = [2.2458, -0.5, -0.5, 0.74, -0.5, -0.5, 2.2603, 2.2762, 0.4937, 0.3, 0.3, 1.6297, -0.5, 0.8936];
pub(super) const GOLDEN_MIXED_LENGTHSCALES: [f64; 3] = [0.7, 0.4, 1.1];
pub(super) const GOLDEN_MIXED_WEIGHTS: [f64; 3] = [0.3, 0.15, 0.08];
pub(super) const GOLDEN_MIXED_QUERIES: [Setting; 4] = [(0, None, None), (1, None, None), (2, Some(0.31), Some(0)), (2, Some(0.87), Some(1))];
pub(super) const GOLDEN_MIXED_PREDICTIONS: [(f64, f64); 4] = [(0.3000030560946503, 0.007070946554916412), (-0.49998468368914983, 0.004472105278730993), (1.514162903000504, 0.8686238925045083), (0.9236222445560132, 0.19476496465928386)];
