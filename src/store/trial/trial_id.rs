//! [`TrialId`].

/// `trial.id`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) struct TrialId(pub i64);
