//! Methods of Python's strings that chat templates call and the template engine's compatibility layer lacks, or has
//! in Jinja's sense rather than Python's.

use minijinja::value::{ValueKind, from_args};
use minijinja::{Error, State, Value};
use minijinja_contrib::pycompat;

/// Calls `method` as Python would.
pub(super) fn call(state: &mut State, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    let text = (value.kind() == ValueKind::String).then(|| value.as_str()).flatten();
    if let Some(result) = text.and_then(|text| string_method(text, method, args)) {
        return result;
    }
    pycompat::unknown_method_callback(state, value, method, args)
}

/// The result of a string's method; `None` for a method that is not ours.
fn string_method<'a>(text: &'a str, method: &str, args: &'a [Value]) -> Option<Result<Value, Error>> {
    let one = || from_args::<(&'a str,)>(args).map(|(argument,)| argument);
    Some(match method {
        "title" => from_args::<()>(args).map(|()| Value::from(title(text))),
        "casefold" => from_args::<()>(args).map(|()| Value::from(text.to_lowercase())),
        "removeprefix" => one().map(|prefix| Value::from(text.strip_prefix(prefix).unwrap_or(text))),
        "removesuffix" => one().map(|suffix| Value::from(text.strip_suffix(suffix).unwrap_or(text))),
        "partition" => one().map(|separator| match text.split_once(separator) {
            Some((before, after)) => list([before, separator, after]),
            None => list([text, "", ""]),
        }),
        "rpartition" => one().map(|separator| match text.rsplit_once(separator) {
            Some((before, after)) => list([before, separator, after]),
            None => list(["", "", text]),
        }),
        "rsplit" => from_args::<(&'a str, Option<i64>)>(args).map(|(separator, most)| rsplit(text, separator, most)),
        _ => return None,
    })
}

/// Upper case for each letter that no letter precedes, lower case for the others.
fn title(text: &str) -> String {
    let mut after_letter = false;
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        if after_letter {
            out.extend(character.to_lowercase());
        } else {
            out.extend(character.to_uppercase());
        }
        after_letter = character.is_alphabetic();
    }
    out
}

fn rsplit(text: &str, separator: &str, most: Option<i64>) -> Value {
    let parts: Vec<&str> = match most.and_then(|most| usize::try_from(most).ok()) {
        Some(most) => text.rsplitn(most + 1, separator).collect(),
        None => text.rsplit(separator).collect(),
    };
    list(parts.into_iter().rev())
}

fn list<'a>(parts: impl IntoIterator<Item = &'a str>) -> Value {
    parts.into_iter().map(Value::from).collect()
}

#[cfg(test)]
mod tests {
    use super::super::jinja::environment;

    #[test]
    fn methods_do_what_they_do_in_python() {
        let cases = [
            ("{{ '<think>it\\'s a'.title() }}", "<Think>It'S A"),
            ("{{ 'a.b.c'.rsplit('.', 1) }}", "['a.b', 'c']"),
            ("{{ 'a.b.c'.rsplit('.') }}", "['a', 'b', 'c']"),
            ("{{ 'a.b.c'.partition('.')[2] }}{{ 'abc'.partition('.')[0] }}", "b.cabc"),
            ("{{ 'a.b.c'.rpartition('.')[0] }}", "a.b"),
            (
                "{{ 'unhappy'.removeprefix('un') }}{{ 'a!'.removesuffix('!') }}",
                "happya",
            ),
            ("{{ ' x '.strip() }}{{ 'A'.lower() }}", "xa"),
        ];
        for (template, expected) in cases {
            assert_eq!(environment().render_str(template, ()).unwrap(), expected, "{template}");
        }
        assert!(environment().render_str("{{ 'a'.encode() }}", ()).is_err());
    }
}
