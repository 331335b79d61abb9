//! [`StudyId`].

/// `study.id`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StudyId(pub i64);
