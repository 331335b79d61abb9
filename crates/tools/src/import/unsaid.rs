//! [`Unsaid`]: keys of a command whose values the script of a shell does not say.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::one_line::on_one_line;
use super::shell::Unread;

/// Passages that a line names, at most so many.
const NAMED: usize = 3;

/// Keys whose values the script does not say in whole.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Unsaid {
    /// Each key with the variables in its value that the script assigns nowhere.
    pub keys: BTreeMap<String, BTreeSet<String>>,
    /// Passages that may set such variables and are not followed, as a line has them; empty where there are none.
    pub unread: String,
}

impl Unsaid {
    /// Locations of the keys in a script, as messages have them.
    pub(super) fn locations(&self, path: &Path) -> BTreeMap<String, String> {
        let all = self.keys.iter().filter_map(|(key, names)| {
            let elsewhere = set_elsewhere(names, &self.unread)?;
            Some((key.clone(), format!("{}, where {elsewhere}", path.display())))
        });
        all.collect()
    }
}

/// Words on variables, and on the passages that may set them and are not followed; `None` where there are none of either.
pub(super) fn set_elsewhere<'n>(names: impl IntoIterator<Item = &'n String>, unread: &str) -> Option<String> {
    let names: BTreeSet<String> = names.into_iter().map(|name| format!("`${name}`")).collect();
    let names: Vec<String> = names.into_iter().collect();
    let is_told = !names.is_empty() && !unread.is_empty();
    is_told.then(|| format!("{} may be set by {unread}, which is not read here", names.join(", ")))
}

/// Passages that are not followed, as a line has them.
pub(super) fn unread_words(all: &[Unread]) -> String {
    let named = all.iter().take(NAMED);
    let named = named.map(|Unread { words, location }| format!("`{}` ({location})", on_one_line(words)));
    let mut named = named.collect::<Vec<_>>().join(" or ");
    if all.len() > NAMED {
        named.push_str(&format!(" or {} more", all.len() - NAMED));
    }
    named
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_told_with_what_may_set_them() {
        let unread = |lines: usize| {
            let all = (1..=lines).map(|line| Unread {
                words: format!("eval  \"{line}\""),
                location: format!("line {line}"),
            });
            unread_words(&all.collect::<Vec<_>>())
        };
        let unsaid = |unread: String| Unsaid {
            keys: BTreeMap::from([("seed".to_owned(), BTreeSet::from(["A".to_owned(), "B".to_owned()]))]),
            unread,
        };
        let told = unsaid(unread(1)).locations(Path::new("run.sh"));
        assert_eq!(
            told["seed"],
            "run.sh, where `$A`, `$B` may be set by `eval \"1\"` (line 1), which is not read here"
        );
        assert!(unread(5).ends_with("`eval \"3\"` (line 3) or 2 more"), "{}", unread(5));
        assert!(unsaid(unread(0)).locations(Path::new("run.sh")).is_empty());
        assert_eq!(set_elsewhere(&[], &unread(1)), None);
    }
}
