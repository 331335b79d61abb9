//! [`TensorShape`].

/// One tensor of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorShape {
    pub name: String,
    pub shape: Vec<usize>,
}

impl TensorShape {
    /// Number of the tensor's elements.
    pub(super) fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}
