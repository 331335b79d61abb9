//! Names that a user may write for a model on the hub.

use std::path::{Component, Path};

use super::HubError;

/// The id and the revision in `owner/name` or `owner/name@revision`; the revision is `main` where it is not said.
///
/// # Errors
/// Fails on what looks like a directory, and on what is not an id. Neither part leads out of the cache.
pub(super) fn parse_hub_name(model: &str) -> Result<(&str, &str), HubError> {
    let (id, revision) = model.split_once('@').unwrap_or((model, "main"));
    if looks_like_a_path(id) {
        return Err(HubError::NoSuchDirectory { path: model.into() });
    }
    if is_hub_id(id) && is_revision(revision) {
        return Ok((id, revision));
    }
    Err(HubError::BadName {
        model: model.to_owned(),
    })
}

fn looks_like_a_path(model: &str) -> bool {
    let path = Path::new(model);
    path.is_absolute()
        || ["./", "../", "~"].iter().any(|start| model.starts_with(start))
        || model.contains('\\')
        || model.ends_with('/')
        || path.components().count() > 2
}

/// `owner/name`, or the bare name of an old model.
fn is_hub_id(id: &str) -> bool {
    let part = |part: &str| {
        !part.is_empty()
            && !part.starts_with(['.', '-'])
            && part.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
    };
    id.split('/').all(part) && !id.contains("..")
}

/// A branch, tag or commit that names no place outside the cache.
fn is_revision(revision: &str) -> bool {
    !revision.is_empty()
        && Path::new(revision)
            .components()
            .all(|part| matches!(part, Component::Normal(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_come_with_or_without_a_revision() {
        assert_eq!(
            parse_hub_name("Qwen/Qwen2.5-0.5B").unwrap(),
            ("Qwen/Qwen2.5-0.5B", "main")
        );
        assert_eq!(parse_hub_name("gpt2@refs/pr/1").unwrap(), ("gpt2", "refs/pr/1"));
    }

    #[test]
    fn names_that_are_no_ids_are_refused() {
        for path in ["./model", "/no/such/model", "a/b/c", "~/model", "a\\b"] {
            let error = parse_hub_name(path).unwrap_err();
            assert!(matches!(error, HubError::NoSuchDirectory { .. }), "{path}: {error}");
        }
        for name in ["", "a b", "a/..", "a@", "a@../b", "-a"] {
            let error = parse_hub_name(name).unwrap_err();
            assert!(matches!(error, HubError::BadName { .. }), "{name}: {error}");
        }
    }
}
