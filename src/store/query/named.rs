//! Questions that people ask often, each with a name.
//!
//! They stand in `named.sql`: a paragraph each, its first line `-- name: what it tells`. Their one parameter `?1` is the
//! name of a study.

/// A query with a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamedQuery {
    pub name: &'static str,
    /// A sentence on what the query tells.
    pub about: &'static str,
    /// One statement that reads, with the study's name as `?1`.
    pub sql: &'static str,
}

const TEXT: &str = include_str!("named.sql");

impl NamedQuery {
    /// Every named query, in the order of the list.
    pub fn all() -> impl Iterator<Item = Self> {
        TEXT.split("\n\n").filter_map(|paragraph| {
            let (heading, sql) = paragraph.split_once('\n')?;
            let (name, about) = heading.strip_prefix("-- ")?.split_once(": ")?;
            Some(Self {
                name,
                about,
                sql: sql.trim(),
            })
        })
    }

    /// The query of that name.
    pub fn find(name: &str) -> Option<Self> {
        Self::all().find(|query| query.name == name)
    }

    /// The name that is most like `name`, where one is.
    pub fn nearest(name: &str) -> Option<&'static str> {
        Self::all()
            .map(|query| (strsim::jaro_winkler(query.name, name), query.name))
            .filter(|(likeness, _)| *likeness > 0.75)
            .max_by(|(a, _), (b, _)| a.total_cmp(b))
            .map(|(_, name)| name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_query_has_a_name_of_its_own() {
        let mut names: Vec<_> = NamedQuery::all().map(|query| query.name).collect();
        assert_eq!(names.len(), TEXT.matches("\n-- ").count() + 1, "each paragraph is read");
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), NamedQuery::all().count());
    }

    #[test]
    fn a_mistyped_name_finds_its_query() {
        assert_eq!(NamedQuery::nearest("fornt"), Some("front"));
        assert_eq!(NamedQuery::nearest("zzzz"), None);
    }
}
