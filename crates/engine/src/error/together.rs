//! Trainings that cannot share passes over one base model.

/// Trainings that cannot share passes over one base model.
#[derive(Debug, thiserror::Error)]
pub enum TogetherError {
    #[error("trainings share the passes over one base model, and these have a base each; load it once for all")]
    OtherBase,

    #[error(
        "layers of `{family}` have {what}, which rows of several trainings do not share so far; train the recipes one after the other"
    )]
    NoGroups { family: &'static str, what: &'static str },
}
