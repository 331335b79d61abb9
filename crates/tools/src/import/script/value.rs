//! What an expression of a script comes to, as far as that is known before it runs, and what had to be assumed for it.

use std::collections::BTreeSet;
use std::rc::Rc;

use serde_json::{Map, Value};

use super::syntax::{Class, Function};

/// Values that a list or a map may hold, those in its members included.
const MOST_VALUES: usize = 400;

/// Letters that count as one value in a text.
const LETTERS_OF_A_VALUE: usize = 64;

/// Parts of parts that are told apart.
const MOST_PARTS: usize = 16;

/// Assumptions of which a value keeps the first ones.
const MOST_GROUNDS: usize = 8;

/// A value, and what was assumed for it: a condition that is not known, an option of the script that has its default.
#[derive(Clone, Debug)]
pub(super) struct Evaluated {
    pub known: Known,
    pub grounds: BTreeSet<Rc<str>>,
}

/// Number of a call, in the order in which calls run.
pub(super) type CallId = usize;

/// A value as far as it is known.
#[derive(Clone, Debug)]
pub(super) enum Known {
    /// A number, a text, a truth or `None`.
    Plain(Value),
    /// Members of a list or a tuple.
    List(Rc<Vec<Evaluated>>),
    /// Entries of a map, or of an object by their names; a later one goes before an earlier one.
    Map(Rc<Vec<(String, Evaluated)>>),
    /// A name of a library, such as `torch.bfloat16`.
    Name(String),
    Function(Rc<Function>),
    /// A class of the script, or an object of it.
    Class(Rc<Class>),
    /// What a call returned.
    Result(CallId),
    /// A part of what a call returned, by its name or position.
    Part(Rc<Known>, String),
    Unknown,
}

impl From<Known> for Evaluated {
    fn from(known: Known) -> Self {
        let grounds = BTreeSet::new();
        Self { known, grounds }
    }
}

impl From<Value> for Evaluated {
    fn from(value: Value) -> Self {
        let is_long = value
            .as_str()
            .is_some_and(|text| text.len() > MOST_VALUES * LETTERS_OF_A_VALUE);
        match is_long {
            true => Self::UNKNOWN,
            false => Known::Plain(value).into(),
        }
    }
}

impl Evaluated {
    /// A value of which nothing is known.
    pub(super) const UNKNOWN: Self = Self {
        known: Known::Unknown,
        grounds: BTreeSet::new(),
    };

    /// A list; nothing is known of one that is too large.
    pub(super) fn list(members: Vec<Self>) -> Self {
        let size: usize = members.iter().map(|member| member.known.size()).sum();
        match size <= MOST_VALUES {
            true => Known::List(Rc::new(members)).into(),
            false => Self::UNKNOWN,
        }
    }

    /// A map; nothing is known of one that is too large.
    pub(super) fn map(entries: Vec<(String, Self)>) -> Self {
        let size: usize = entries.iter().map(|(_, value)| value.known.size()).sum();
        match size <= MOST_VALUES {
            true => Known::Map(Rc::new(entries)).into(),
            false => Self::UNKNOWN,
        }
    }

    /// The value of JSON, lists and maps as such.
    pub(super) fn of_json(value: &Value) -> Self {
        match value {
            Value::Array(all) => Self::list(all.iter().map(Self::of_json).collect()),
            Value::Object(all) => {
                let entries = all.iter().map(|(key, value)| (key.clone(), Self::of_json(value)));
                Self::map(entries.collect())
            }
            plain => plain.clone().into(),
        }
    }

    /// The value with another assumption.
    pub(super) fn assuming(mut self, ground: &Rc<str>) -> Self {
        if self.grounds.len() < MOST_GROUNDS {
            self.grounds.insert(ground.clone());
        }
        self
    }

    /// The value with what was assumed for others, too.
    pub(super) fn because<'g>(mut self, others: impl IntoIterator<Item = &'g Self>) -> Self {
        for ground in others.into_iter().flat_map(|other| &other.grounds) {
            self = self.assuming(ground);
        }
        self
    }

    /// The value as JSON, with what was assumed for it; `None` where a part of it is not known.
    pub(super) fn plain(&self) -> Option<Value> {
        self.known.plain()
    }

    /// Assumptions for the value and for what it holds.
    pub(super) fn all_grounds(&self) -> BTreeSet<Rc<str>> {
        let mut all = self.grounds.clone();
        let mut add = |one: &Self| all.extend(one.all_grounds());
        match &self.known {
            Known::List(members) => members.iter().for_each(&mut add),
            Known::Map(entries) => entries.iter().for_each(|(_, value)| add(value)),
            _ => {}
        }
        all
    }

    /// Whether the value counts as true; `None` where that is not known.
    pub(super) fn truth(&self) -> Option<bool> {
        match &self.known {
            Known::Plain(Value::Null) => Some(false),
            Known::Plain(Value::Bool(flag)) => Some(*flag),
            Known::Plain(Value::Number(number)) => Some(number.as_f64() != Some(0.0)),
            Known::Plain(Value::String(text)) => Some(!text.is_empty()),
            Known::List(members) => Some(!members.is_empty()),
            Known::Map(entries) => Some(!entries.is_empty()),
            Known::Function(_) | Known::Class(_) => Some(true),
            _ => None,
        }
    }

    /// Whether the value is `None`.
    pub(super) fn is_nothing(&self) -> bool {
        matches!(self.known, Known::Plain(Value::Null))
    }

    /// The text that a value is.
    pub(super) fn text(&self) -> Option<&str> {
        match &self.known {
            Known::Plain(Value::String(text)) => Some(text),
            _ => None,
        }
    }

    /// The whole number that a value is.
    pub(super) fn whole(&self) -> Option<i64> {
        match &self.known {
            Known::Plain(value) => value.as_i64(),
            _ => None,
        }
    }

    /// The members of a list.
    pub(super) fn members(&self) -> Option<&[Self]> {
        match &self.known {
            Known::List(members) => Some(members.as_slice()),
            _ => None,
        }
    }

    /// The entry of a map, or the one of an object.
    pub(super) fn entry(&self, name: &str) -> Option<&Self> {
        match &self.known {
            Known::Map(entries) => entries
                .iter()
                .rev()
                .find(|(key, _)| key == name)
                .map(|(_, value)| value),
            _ => None,
        }
    }

    /// Whether two values are known to be the same.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.known.is_same(&other.known)
    }
}

impl Known {
    /// The part of that name or position.
    pub(super) fn part(&self, key: &str) -> Self {
        let (mut depth, mut whole) = (0, self);
        while let Self::Part(inner, _) = whole {
            depth += 1;
            whole = &**inner;
        }
        match whole {
            Self::Result(_) if depth < MOST_PARTS => Self::Part(Rc::new(self.clone()), key.to_owned()),
            _ => Self::Unknown,
        }
    }

    /// Values in it.
    fn size(&self) -> usize {
        match self {
            Self::List(members) => 1 + members.iter().map(|member| member.known.size()).sum::<usize>(),
            Self::Map(entries) => 1 + entries.iter().map(|(_, value)| value.known.size()).sum::<usize>(),
            Self::Plain(Value::String(text)) => 1 + text.len() / LETTERS_OF_A_VALUE,
            _ => 1,
        }
    }

    fn plain(&self) -> Option<Value> {
        Some(match self {
            Self::Plain(value) => value.clone(),
            Self::List(members) => Value::Array(members.iter().map(Evaluated::plain).collect::<Option<Vec<_>>>()?),
            Self::Map(entries) => {
                let entries = entries.iter().map(|(key, value)| Some((key.clone(), value.plain()?)));
                Value::Object(entries.collect::<Option<Map<String, Value>>>()?)
            }
            Self::Name(name) => Value::String(dtype(name)?.to_owned()),
            Self::Function(_) | Self::Class(_) | Self::Result(_) | Self::Part(..) | Self::Unknown => return None,
        })
    }

    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Plain(left), Self::Plain(right)) => left == right,
            (Self::List(left), Self::List(right)) => {
                let all = || left.iter().zip(right.iter()).all(|(left, right)| left.is_same(right));
                Rc::ptr_eq(left, right) || left.len() == right.len() && all()
            }
            (Self::Map(left), Self::Map(right)) => {
                let mut pairs = left.iter().zip(right.iter());
                let mut all = || pairs.all(|(left, right)| left.0 == right.0 && left.1.is_same(&right.1));
                Rc::ptr_eq(left, right) || left.len() == right.len() && all()
            }
            (Self::Name(left), Self::Name(right)) => left == right,
            (Self::Function(left), Self::Function(right)) => Rc::ptr_eq(left, right),
            (Self::Class(left), Self::Class(right)) => Rc::ptr_eq(left, right),
            (Self::Result(left), Self::Result(right)) => left == right,
            (Self::Part(left, key), Self::Part(right, other)) => key == other && left.is_same(right),
            _ => false,
        }
    }
}

/// The name of a dtype in settings files.
fn dtype(name: &str) -> Option<&'static str> {
    let last = name.strip_prefix("torch.")?;
    let names = ["bfloat16", "float16", "float32", "half", "float"];
    names.into_iter().find(|known| *known == last).map(|known| match known {
        "half" => "float16",
        "float" => "float32",
        known => known,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_are_json_as_far_as_they_are_known() {
        let value = json!({"a": [1, "b", null], "c": {"d": true}});
        let evaluated = Evaluated::of_json(&value);
        assert_eq!(evaluated.plain(), Some(value));
        assert_eq!(
            evaluated.entry("a").and_then(Evaluated::members).map(<[_]>::len),
            Some(3)
        );
        let with_result = Evaluated::list(vec![json!(1).into(), Known::Result(3).into()]);
        assert_eq!((with_result.plain(), with_result.truth()), (None, Some(true)));
        let dtype = Evaluated::from(Known::Name("torch.half".into()));
        assert_eq!(dtype.plain(), Some(json!("float16")));
        assert_eq!(Evaluated::from(Known::Name("torch.int8".into())).plain(), None);
    }

    #[test]
    fn a_value_that_doubles_becomes_unknown_before_it_is_large() {
        let mut value = Evaluated::list(vec![json!(1).into(); 10]);
        for _ in 0..64 {
            value = Evaluated::list(vec![value.clone(), value]);
        }
        // Lists of what is not known are small again.
        assert!(value.plain().is_none() && value.known.size() <= MOST_VALUES);
        let long = Evaluated::from(json!("a".repeat(1 << 20)));
        assert!(matches!(long.known, Known::Unknown));
    }

    #[test]
    fn what_is_assumed_goes_with_a_value() {
        let ground: Rc<str> = "line 3".into();
        let one = Evaluated::from(json!(1)).assuming(&ground);
        let both = Evaluated::list(vec![one.clone(), json!(2).into()]);
        assert!(both.grounds.is_empty());
        assert_eq!(both.all_grounds(), one.grounds);
        assert_eq!(Evaluated::UNKNOWN.because([&one, &both]).grounds, one.grounds);
    }
}
