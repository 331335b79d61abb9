//! Functions of Python's own and methods of its values, and what a script asks its machine for.

use std::rc::Rc;

use serde_json::{Number, Value};

use super::environment;
use super::operators::compares;
use super::run::Arguments;
use super::value::{Evaluated, Known};

/// Functions that give a value back as it is, or a copy of it.
const COPIES: &[&str] = &[
    "list",
    "tuple",
    "set",
    "sorted",
    "copy",
    "copy.copy",
    "deepcopy",
    "copy.deepcopy",
    "vars",
    "asdict",
    "dataclasses.asdict",
    "OmegaConf.create",
];

/// Functions that make an object of named values.
const OBJECTS: &[&str] = &[
    "dict",
    "OrderedDict",
    "collections.OrderedDict",
    "SimpleNamespace",
    "types.SimpleNamespace",
    "Namespace",
    "argparse.Namespace",
    "EasyDict",
    "edict",
];

/// Functions that give a text back, or a path as a text.
const TEXTS: &[&str] = &[
    "str",
    "Path",
    "pathlib.Path",
    "os.path.expanduser",
    "os.path.abspath",
    "os.path.realpath",
    "os.fspath",
];

/// Letters of a text times those that stand in it in the place of others, at the most.
const MOST_REPLACED: usize = 1 << 18;

/// What a function of that name returns; `None` of those that are not evaluated.
pub(super) fn of_library(name: &str, arguments: &Arguments) -> Option<Evaluated> {
    let all: Vec<&Evaluated> = arguments.positional.iter().map(|bound| &bound.value).collect();
    let first = all.first().copied();
    let value = match name {
        _ if !arguments.unknown.is_empty() => return None,
        _ if COPIES.contains(&name) => match first {
            None => Some(Evaluated::list(Vec::new())),
            Some(one) => matches!(one.known, Known::List(_) | Known::Map(_)).then(|| one.clone()),
        },
        _ if OBJECTS.contains(&name) => object_of(arguments),
        _ if TEXTS.contains(&name) => first.and_then(as_text).map(of_text),
        _ if environment::READ.contains(&name) => return Some(of_environment(&all)),
        "os.path.join" => joined(&all, "/"),
        "json.loads" => first.and_then(Evaluated::text).and_then(parsed),
        "int" | "float" => first.and_then(|one| converted(one, name)),
        "bool" => first.and_then(Evaluated::truth).map(|truth| Value::Bool(truth).into()),
        "len" => first.and_then(length).map(|length| Value::from(length).into()),
        "abs" | "round" => first.and_then(|one| rounded(one, name, all.get(1).copied())),
        "min" | "max" => extreme(&all, name),
        "getattr" => attribute(&all),
        "print" => Some(Value::Null.into()),
        _ => return of_device(name),
    };
    Some(value.unwrap_or(Evaluated::UNKNOWN).because(all))
}

fn of_text(text: String) -> Evaluated {
    Value::String(text).into()
}

/// What a script asks about the device that it runs on: one with bfloat16 is assumed, and said so.
fn of_device(name: &str) -> Option<Evaluated> {
    let last = name.rsplit('.').next().unwrap_or_default();
    let value: Evaluated = match last {
        "is_bfloat16_supported" | "is_bf16_supported" | "is_torch_bf16_gpu_available" => Value::Bool(true).into(),
        "is_available" if name.ends_with("cuda.is_available") => Value::Bool(true).into(),
        "get_device_capability" => Evaluated::list(vec![Value::from(8).into(), Value::from(0).into()]),
        "device_count" => Value::from(1).into(),
        _ => return None,
    };
    let ground: Rc<str> = format!("one GPU with bfloat16 is assumed, as the script asks for it by `{last}()`").into();
    Some(value.assuming(&ground))
}

/// The default of a variable of the environment, which is assumed not to be set.
fn of_environment(all: &[&Evaluated]) -> Evaluated {
    let name = all.first().and_then(|name| name.text()).unwrap_or_default();
    let ground: Rc<str> = format!("`{name}` is taken as not set in the environment").into();
    let value = all.get(1).map_or(Value::Null.into(), |default| (*default).clone());
    value.assuming(&ground)
}

/// A value as Python writes it into a text.
pub(super) fn as_text(value: &Evaluated) -> Option<String> {
    match &value.known {
        Known::Plain(Value::String(text)) => Some(text.clone()),
        Known::Plain(Value::Number(number)) => Some(number.to_string()),
        Known::Plain(Value::Bool(flag)) => Some(if *flag { "True" } else { "False" }.to_owned()),
        Known::Plain(Value::Null) => Some("None".to_owned()),
        _ => None,
    }
}

/// An index from either end.
pub(super) fn index(index: i64, length: usize) -> Option<usize> {
    let from = match index < 0 {
        true => usize::try_from(index.unsigned_abs())
            .ok()
            .and_then(|back| length.checked_sub(back)),
        false => usize::try_from(index).ok(),
    };
    from.filter(|from| *from < length)
}

/// Members of a list, or letters of a text, between two bounds.
pub(super) fn slice(whole: &Evaluated, bounds: &[Option<Evaluated>; 2]) -> Evaluated {
    let Some(length) = length(whole) else {
        return Evaluated::UNKNOWN;
    };
    let at = |bound: &Option<Evaluated>, usual: usize| match bound {
        None => Some(usual),
        Some(bound) => {
            let bound = bound.whole()?;
            let from_end = index(bound, length);
            Some(from_end.unwrap_or(if bound < 0 { 0 } else { length }))
        }
    };
    let (Some(from), Some(to)) = (at(&bounds[0], 0), at(&bounds[1], length)) else {
        return Evaluated::UNKNOWN;
    };
    let count = to.saturating_sub(from);
    match &whole.known {
        Known::List(members) => Evaluated::list(members.iter().skip(from).take(count).cloned().collect()),
        Known::Plain(Value::String(text)) => of_text(text.chars().skip(from).take(count).collect()),
        _ => Evaluated::UNKNOWN,
    }
}

fn length(value: &Evaluated) -> Option<usize> {
    match &value.known {
        Known::List(members) => Some(members.len()),
        Known::Plain(Value::String(text)) => Some(text.chars().count()),
        _ => None,
    }
}

fn parsed(text: &str) -> Option<Evaluated> {
    let value: Value = serde_json::from_str(text).ok()?;
    Some(Evaluated::of_json(&value))
}

fn object_of(arguments: &Arguments) -> Option<Evaluated> {
    let mut entries = Vec::new();
    for bound in &arguments.positional {
        match &bound.value.known {
            Known::Map(inner) => entries.extend(inner.iter().cloned()),
            _ => return None,
        }
    }
    let named = arguments.named.iter();
    entries.extend(named.map(|(name, bound)| (name.clone(), bound.value.clone())));
    Some(Evaluated::map(entries))
}

/// Texts with something between them.
fn joined(all: &[&Evaluated], between: &str) -> Option<Evaluated> {
    let texts: Option<Vec<&str>> = all.iter().map(|one| one.text()).collect();
    texts.map(|texts| of_text(texts.join(between)))
}

/// A number of another kind, also of a text.
fn converted(value: &Evaluated, kind: &str) -> Option<Evaluated> {
    let number = match &value.known {
        Known::Plain(Value::String(text)) => super::literal::number(text.trim())?.as_f64()?,
        Known::Plain(Value::Bool(flag)) => f64::from(u8::from(*flag)),
        Known::Plain(Value::Number(whole)) if kind == "int" && whole.is_i64() => return Some(value.clone()),
        Known::Plain(other) => other.as_f64()?,
        _ => return None,
    };
    match kind {
        "int" => whole(number.trunc()),
        _ => Number::from_f64(number).map(|number| Value::Number(number).into()),
    }
}

/// A number without a fraction, where it is not too large.
fn whole(number: f64) -> Option<Evaluated> {
    const LARGEST: f64 = 9e15;
    (number.abs() <= LARGEST).then(|| Value::from(number as i64).into())
}

fn rounded(value: &Evaluated, name: &str, digits: Option<&Evaluated>) -> Option<Evaluated> {
    let Known::Plain(number) = &value.known else {
        return None;
    };
    match (name, number.as_i64(), digits) {
        ("abs", Some(number), _) => Some(Value::from(number.checked_abs()?).into()),
        ("abs", None, _) => Number::from_f64(number.as_f64()?.abs()).map(|number| Value::Number(number).into()),
        // Halves go to the even number there.
        (_, _, None) => whole(number.as_f64()?.round_ties_even()),
        _ => None,
    }
}

fn extreme(all: &[&Evaluated], name: &str) -> Option<Evaluated> {
    let members: Vec<&Evaluated> = match all {
        [one] => one.members()?.iter().collect(),
        many => many.to_vec(),
    };
    let operator = if name == "min" { "<" } else { ">" };
    let (mut best, rest) = members.split_first().map(|(first, rest)| (*first, rest))?;
    for one in rest.iter().copied() {
        if compares(one, operator, best)? {
            best = one;
        }
    }
    Some(best.clone())
}

fn attribute(all: &[&Evaluated]) -> Option<Evaluated> {
    let (object, name) = (all.first()?, all.get(1)?.text()?);
    match &object.known {
        Known::Name(owner) => Some(Known::Name(format!("{owner}.{name}")).into()),
        Known::Map(_) => object.entry(name).or(all.get(2).copied()).cloned(),
        _ => None,
    }
}

/// What a method of a text, a list or a map returns, and what the value then is where the method changes it.
pub(super) fn of_value(value: &Evaluated, method: &str, arguments: &Arguments) -> (Evaluated, Option<Evaluated>) {
    let all: Vec<&Evaluated> = arguments.positional.iter().map(|bound| &bound.value).collect();
    let nothing = || Evaluated::from(Value::Null);
    let (result, changed) = match &value.known {
        Known::Plain(Value::String(text)) => (of_text_method(text, method, &all), None),
        Known::List(members) => match (method, &all[..]) {
            ("append", [one]) => {
                let members = members.iter().chain([*one]).cloned();
                (Some(nothing()), Some(Evaluated::list(members.collect())))
            }
            ("extend", [more]) => {
                let more = more.members().map(|more| members.iter().chain(more).cloned().collect());
                (Some(nothing()), Some(more.map_or(Evaluated::UNKNOWN, Evaluated::list)))
            }
            ("copy", []) => (Some(value.clone()), None),
            // An order or members that are not followed.
            _ => (None, Some(Evaluated::UNKNOWN)),
        },
        Known::Map(entries) => of_map_method(value, entries, method, arguments),
        _ => (None, None),
    };
    (result.unwrap_or(Evaluated::UNKNOWN).because(all), changed)
}

fn of_text_method(text: &str, method: &str, all: &[&Evaluated]) -> Option<Evaluated> {
    let texts: Option<Vec<&str>> = all.iter().map(|one| one.text()).collect();
    let split = |parts: Vec<&str>| Evaluated::list(parts.into_iter().map(|part| of_text(part.to_owned())).collect());
    if let ("join", [parts]) = (method, all) {
        return joined(&parts.members()?.iter().collect::<Vec<_>>(), text);
    }
    Some(match (method, &texts?[..]) {
        ("lower", []) => of_text(text.to_lowercase()),
        ("upper", []) => of_text(text.to_uppercase()),
        ("strip", []) => of_text(text.trim().to_owned()),
        ("lstrip", []) => of_text(text.trim_start().to_owned()),
        ("rstrip", []) => of_text(text.trim_end().to_owned()),
        ("replace", [from, to]) if !from.is_empty() && text.len().saturating_mul(to.len()) <= MOST_REPLACED => {
            of_text(text.replace(from, to))
        }
        ("split", []) => split(text.split_whitespace().collect()),
        ("split", [between]) if !between.is_empty() => split(text.split(between).collect()),
        ("startswith", [start]) => Value::Bool(text.starts_with(start)).into(),
        ("endswith", [end]) => Value::Bool(text.ends_with(end)).into(),
        _ => return None,
    })
}

fn of_map_method(
    value: &Evaluated,
    entries: &[(String, Evaluated)],
    method: &str,
    arguments: &Arguments,
) -> (Option<Evaluated>, Option<Evaluated>) {
    let all: Vec<&Evaluated> = arguments.positional.iter().map(|bound| &bound.value).collect();
    let or_nothing = |default: Option<&&Evaluated>| default.map_or(Value::Null.into(), |default| (*default).clone());
    match (method, all.first().and_then(|key| key.text())) {
        ("get", Some(key)) => (
            Some(value.entry(key).cloned().unwrap_or_else(|| or_nothing(all.get(1)))),
            None,
        ),
        ("pop", Some(key)) => {
            let rest = entries.iter().filter(|(name, _)| name != key).cloned();
            let popped = value.entry(key).cloned().unwrap_or_else(|| or_nothing(all.get(1)));
            (Some(popped), Some(Evaluated::map(rest.collect())))
        }
        ("update", _) => {
            let more = object_of(arguments).filter(|_| arguments.unknown.is_empty());
            let changed = match more.as_ref().map(|more| &more.known) {
                Some(Known::Map(more)) => Evaluated::map(entries.iter().chain(more.iter()).cloned().collect()),
                _ => Evaluated::UNKNOWN,
            };
            (Some(Value::Null.into()), Some(changed))
        }
        ("copy", None) => (Some(value.clone()), None),
        ("keys", None) => {
            let names = entries.iter().map(|(name, _)| of_text(name.clone()));
            (Some(Evaluated::list(names.collect())), None)
        }
        ("values", None) => {
            let values = entries.iter().map(|(_, value)| value.clone());
            (Some(Evaluated::list(values.collect())), None)
        }
        ("items", None) => {
            let pairs = entries
                .iter()
                .map(|(name, value)| Evaluated::list(vec![of_text(name.clone()), value.clone()]));
            (Some(Evaluated::list(pairs.collect())), None)
        }
        _ => (None, None),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::run::Bound;
    use super::*;

    fn arguments(positional: Vec<Value>) -> Arguments {
        let of = |value: Value| Bound {
            value: Evaluated::of_json(&value),
            line: 0,
            text: String::new(),
        };
        Arguments {
            positional: positional.into_iter().map(of).collect(),
            ..Arguments::default()
        }
    }

    fn called(name: &str, positional: Vec<Value>) -> Option<Value> {
        of_library(name, &arguments(positional))?.plain()
    }

    fn method(value: Value, name: &str, positional: Vec<Value>) -> Option<Value> {
        of_value(&Evaluated::of_json(&value), name, &arguments(positional))
            .0
            .plain()
    }

    #[test]
    fn functions_give_what_python_gives() {
        for (name, positional, expected) in [
            ("int", vec![json!("16")], json!(16)),
            ("int", vec![json!(7.9)], json!(7)),
            ("float", vec![json!("2e-4")], json!(2e-4)),
            ("str", vec![json!(8)], json!("8")),
            ("len", vec![json!([1, 2])], json!(2)),
            ("max", vec![json!(1), json!(3)], json!(3)),
            ("min", vec![json!([2, 1.5])], json!(1.5)),
            ("round", vec![json!(2.5)], json!(2)),
            ("os.path.join", vec![json!("a"), json!("b")], json!("a/b")),
            ("os.environ.get", vec![json!("X"), json!("d")], json!("d")),
            ("dict", vec![json!({"a": 1})], json!({"a": 1})),
            ("json.loads", vec![json!("[1, null]")], json!([1, null])),
            ("torch.cuda.is_bf16_supported", vec![], json!(true)),
        ] {
            assert_eq!(called(name, positional), Some(expected), "{name}");
        }
        assert_eq!(called("compute", vec![]), None);
        assert!(of_library("compute", &Arguments::default()).is_none());
        let many = of_library("int", &arguments(vec![json!("many")])).unwrap();
        assert!(matches!(many.known, Known::Unknown));
    }

    #[test]
    fn what_is_assumed_of_the_machine_is_said() {
        let supported = of_library("is_bfloat16_supported", &Arguments::default()).unwrap();
        assert!(
            supported
                .grounds
                .iter()
                .any(|ground| ground.contains("bfloat16 is assumed"))
        );
        let variable = of_library("os.getenv", &arguments(vec![json!("MODEL")])).unwrap();
        assert!(variable.grounds.iter().any(|ground| ground.contains("`MODEL`")));
    }

    #[test]
    fn methods_change_lists_and_maps() {
        assert_eq!(method(json!("a/b"), "split", vec![json!("/")]), Some(json!(["a", "b"])));
        assert_eq!(method(json!("-"), "join", vec![json!(["a", "b"])]), Some(json!("a-b")));
        assert_eq!(method(json!("Llama"), "lower", vec![]), Some(json!("llama")));
        assert_eq!(
            method(json!({"r": 4}), "get", vec![json!("s"), json!(2)]),
            Some(json!(2))
        );
        let list = Evaluated::of_json(&json!([1]));
        let (_, changed) = of_value(&list, "append", &arguments(vec![json!(2)]));
        assert_eq!(changed.unwrap().plain(), Some(json!([1, 2])));
        let map = Evaluated::of_json(&json!({"r": 4}));
        let (_, changed) = of_value(&map, "update", &arguments(vec![json!({"r": 8})]));
        assert_eq!(changed.unwrap().plain(), Some(json!({"r": 8})));
        let (_, changed) = of_value(&list, "sort", &Arguments::default());
        assert!(matches!(changed.unwrap().known, Known::Unknown));
    }

    #[test]
    fn slices_and_indices_count_from_both_ends() {
        let list = Evaluated::of_json(&json!([1, 2, 3]));
        let bound = |number: i64| Some(Evaluated::from(json!(number)));
        for (bounds, expected) in [
            ([None, bound(2)], json!([1, 2])),
            ([bound(-1), None], json!([3])),
            ([bound(1), bound(9)], json!([2, 3])),
            ([bound(2), bound(1)], json!([])),
            ([bound(-9), None], json!([1, 2, 3])),
        ] {
            assert_eq!(slice(&list, &bounds).plain(), Some(expected));
        }
        assert_eq!((index(-3, 3), index(-4, 3), index(3, 3)), (Some(0), None, None));
        assert_eq!(index(i64::MIN, 3), None);
    }
}
