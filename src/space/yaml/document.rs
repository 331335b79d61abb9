//! One YAML file: its text, its tree, and where each key stands.

use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::de::DeserializeOwned;

use super::decode::Decoder;
use super::{DecodeError, Fault, Node, Span, Value};
use crate::space::SpaceError;

/// Files above this size are not settings written by a person.
const LIMIT_BYTES: u64 = 1 << 20;
/// Nodes that a file may hold once its aliases are written out: far above any real file, far below a YAML bomb.
const LIMIT_NODES: usize = 20_000;

/// A file that is valid YAML.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Document {
    path: PathBuf,
    text: Arc<str>,
    root: Node,
}

impl Document {
    /// Reads and parses a file.
    ///
    /// # Errors
    /// Where the file cannot be read, is not UTF-8, is not YAML, repeats a key, or grows without end when its aliases
    /// are written out.
    pub(crate) fn read(path: &Path) -> Result<Self, SpaceError> {
        let unreadable = |error: std::io::Error| SpaceError::Unreadable {
            path: path.to_owned(),
            reason: error.kind(),
        };
        let mut bytes = Vec::new();
        let file = std::fs::File::open(path).map_err(unreadable)?;
        let said = file.metadata().map_err(unreadable)?.len();
        file.take(LIMIT_BYTES + 1).read_to_end(&mut bytes).map_err(unreadable)?;
        if bytes.len() as u64 > LIMIT_BYTES {
            return Err(SpaceError::TooLarge {
                path: path.to_owned(),
                // What a device says of its size is not its size.
                bytes: said.max(bytes.len() as u64),
                limit: LIMIT_BYTES,
            });
        }
        match String::from_utf8(bytes) {
            Ok(text) => Self::parse(path, &text),
            Err(error) => {
                let valid = error.utf8_error().valid_up_to();
                let text: Arc<str> = String::from_utf8_lossy(error.as_bytes()).into();
                Err(SpaceError::NotUtf8 {
                    at: Box::new(Span::new(path, &text, valid..valid + 1, String::new())),
                })
            }
        }
    }

    /// Parses text as if it stood in the file `path`.
    pub(crate) fn parse(path: &Path, text: &str) -> Result<Self, SpaceError> {
        // An editor on Windows may put a byte-order mark first.
        let text: Arc<str> = text.strip_prefix('\u{feff}').unwrap_or(text).into();
        let options = serde_saphyr::options! {
            budget: serde_saphyr::budget! {
                max_events: 4 * LIMIT_NODES,
                max_nodes: LIMIT_NODES,
                max_recorded_anchor_events: 4 * LIMIT_NODES,
                max_depth: 32,
            },
            alias_limits: serde_saphyr::alias_limits! {
                max_total_replayed_events: LIMIT_NODES,
                max_replay_stack_depth: 8,
            },
            strict_booleans: true,
            with_snippet: false,
        };
        match serde_saphyr::from_str_with_options::<Node>(&text, options) {
            Ok(root) => Ok(Self {
                path: path.to_owned(),
                text,
                root,
            }),
            Err(error) => Err(syntax_error(path, &text, &error)),
        }
    }

    /// Decodes the whole file.
    ///
    /// # Errors
    /// At the first key or value that does not fit `T`.
    pub(crate) fn decode<T: DeserializeOwned>(&self) -> Result<T, SpaceError> {
        if matches!(self.root.value, Value::Null) {
            return Err(SpaceError::Empty {
                at: self.place(0..0, String::new()),
            });
        }
        let decoder = Decoder {
            node: &self.root,
            text: &self.text,
        };
        T::deserialize(decoder).map_err(|error| self.decode_error(error))
    }

    fn decode_error(&self, error: DecodeError) -> SpaceError {
        let keys: Vec<&str> = error.keys.iter().map(String::as_str).collect();
        let span = error.span.unwrap_or(0..0);
        let at = self.place(span, self.dotted(&keys));
        match error.fault {
            Fault::UnknownKey { key, known } => SpaceError::unknown_key(at, &key, known),
            Fault::MissingKey { key } => SpaceError::MissingKey { at, key },
            Fault::WrongValue { found, expected } => SpaceError::WrongValue { at, found, expected },
            Fault::Other(message) => SpaceError::Rejected { at, message },
        }
    }

    /// The place of a key; of the nearest key above it where the file does not have it.
    pub(crate) fn key(&self, keys: &[&str]) -> Box<Span> {
        let mut node = &self.root;
        let mut span = 0..0;
        for key in keys {
            match (node.key_span(key), node.child(key)) {
                (Some(found), Some(child)) => (span, node) = (found, child),
                _ => break,
            }
        }
        self.place(span, self.dotted(keys))
    }

    /// The place of the value under a key; of the key itself where the value is a list or map.
    pub(crate) fn value(&self, keys: &[&str]) -> Box<Span> {
        match self.node(keys) {
            Some(node) if !node.span.is_empty() && !matches!(node.value, Value::List(_) | Value::Map(_)) => {
                self.place(node.span.clone(), self.dotted(keys))
            }
            _ => self.key(keys),
        }
    }

    /// Whether the file has this key.
    pub(crate) fn has(&self, keys: &[&str]) -> bool {
        self.node(keys).is_some()
    }

    /// The text under a key, where it is one.
    pub(crate) fn word(&self, keys: &[&str]) -> Option<&str> {
        match &self.node(keys)?.value {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    fn node(&self, keys: &[&str]) -> Option<&Node> {
        keys.iter().try_fold(&self.root, |node, key| node.child(key))
    }

    fn place(&self, span: Range<usize>, key: String) -> Box<Span> {
        Box::new(Span::new(&self.path, &self.text, span, key))
    }

    /// `a.b[0].c` of keys `a`, `b`, `0`, `c`.
    fn dotted(&self, keys: &[&str]) -> String {
        let mut node = Some(&self.root);
        let mut path = String::new();
        for key in keys {
            if node.is_some_and(|node| matches!(node.value, Value::List(_))) {
                path.push_str(&format!("[{key}]"));
            } else {
                if !path.is_empty() {
                    path.push('.');
                }
                path.push_str(key);
            }
            node = node.and_then(|node| node.child(key));
        }
        path
    }

    /// The file as it was named.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The folder that paths in the file are relative to.
    pub(crate) fn folder(&self) -> &Path {
        match self.path.parent() {
            Some(folder) if folder != Path::new("") => folder,
            _ => Path::new("."),
        }
    }

    /// The whole text.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }
}

fn syntax_error(path: &Path, text: &Arc<str>, error: &serde_saphyr::Error) -> SpaceError {
    use serde_saphyr::Error;
    let error = error.without_snippet();
    let span = error.location().map_or(0..0, |location| span_of(text, location));
    let at = |key: String| Box::new(Span::new(path, text, span.clone(), key));
    match error {
        Error::DuplicateMappingKey { key, .. } => SpaceError::DuplicateKey {
            at: at(key.clone().unwrap_or_default()),
        },
        Error::Budget { .. }
        | Error::AliasReplayLimitExceeded { .. }
        | Error::AliasReplayStackDepthExceeded { .. }
        | Error::AliasExpansionLimitExceeded { .. } => SpaceError::TooComplex { at: at(String::new()) },
        Error::AliasError { error, .. } => syntax_error(path, text, error),
        Error::MultipleDocuments { .. } => SpaceError::Syntax {
            at: at(String::new()),
            message: "a second document starts here (`---`)".into(),
        },
        Error::ExternalMessage { .. } if unquoted_bound(text, span.start) => SpaceError::Syntax {
            at: at(String::new()),
            message: "a `>` after `:` begins a text block; put the bound in quotes, \">= ..\"".into(),
        },
        Error::ExternalMessage { msg, .. } => SpaceError::Syntax {
            at: at(String::new()),
            message: msg.clone(),
        },
        other => SpaceError::Syntax {
            at: at(String::new()),
            message: without_position(&other.to_string()),
        },
    }
}

/// The bytes of a location; the parser's own errors give line and column only.
fn span_of(text: &str, location: serde_saphyr::Location) -> Range<usize> {
    if location.span().byte_offset().is_some() {
        return super::tree::bytes(location);
    }
    let line_start: usize = text
        .split_inclusive('\n')
        .take((location.line() as usize).saturating_sub(1))
        .map(str::len)
        .sum();
    let before = (location.column() as usize).saturating_sub(1);
    let start = line_start
        + text[line_start..]
            .chars()
            .take(before)
            .map(char::len_utf8)
            .sum::<usize>();
    start..start
}

/// Whether the line at `offset` has a `>=` that YAML takes for the start of a folded block.
fn unquoted_bound(text: &str, offset: usize) -> bool {
    let start = text[..offset].rfind('\n').map_or(0, |newline| newline + 1);
    let line = text[start..].lines().next().unwrap_or_default();
    line.split_once(": ")
        .is_some_and(|(_, value)| value.trim_start().starts_with(">="))
}

/// Leaves out the position that the parser appends: it stands at the front of our own message.
fn without_position(message: &str) -> String {
    let message = message.lines().next().unwrap_or_default();
    message.split(" at line ").next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Document {
        Document::parse(Path::new("f.yaml"), text).unwrap()
    }

    #[test]
    fn scalars_keep_their_kind() {
        let document = parse("a: 5e-5\nb: yes\nc: true\nd: '1'\ne: 1\nf:\ng: 0x10\nh: 1_000\ni: 3.0\n");
        let values: Vec<_> = ["a", "b", "c", "d", "e", "f", "g", "h", "i"]
            .iter()
            .map(|key| document.node(&[key]).unwrap().value.clone())
            .collect();
        assert_eq!(
            values,
            [
                Value::Float(5e-5),
                Value::Text("yes".into()),
                Value::Bool(true),
                Value::Text("1".into()),
                Value::Int(1),
                Value::Null,
                Value::Int(16),
                Value::Int(1000),
                Value::Float(3.0),
            ]
        );
    }

    #[test]
    fn keys_and_values_know_their_place() {
        let document = parse("space:\n  rank: [4, 8]\n  alpha: {low: 1}\n");
        let place = document.value(&["space", "rank", "1"]);
        assert_eq!((place.line, place.column, place.key.as_str()), (2, 13, "space.rank[1]"));
        let place = document.key(&["space", "alpha", "low"]);
        assert_eq!(
            (place.line, place.column, place.key.as_str()),
            (3, 11, "space.alpha.low")
        );
        let place = document.value(&["space", "alpha", "high"]);
        assert_eq!(
            (place.line, place.column, place.key.as_str()),
            (3, 11 - 8, "space.alpha.high")
        );
    }

    #[test]
    fn an_alias_points_at_where_it_is_used() {
        let document = parse("a: &x [1, 2]\nb: *x\n");
        let lists: std::collections::BTreeMap<String, Vec<String>> = document.decode().unwrap();
        assert_eq!(lists["b"], ["1", "2"]);
        assert_eq!(document.value(&["b"]).line, 2);
    }

    #[test]
    fn a_number_can_be_read_as_the_text_it_was() {
        let names: std::collections::BTreeMap<String, String> = parse("a: 007\nb: 1.50\nc: true\n").decode().unwrap();
        assert_eq!(names["a"], "007");
        assert_eq!(names["b"], "1.50");
        assert_eq!(names["c"], "true");
    }
}
