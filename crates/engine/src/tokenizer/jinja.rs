//! The template engine, set up as transformers sets Jinja up for chat templates.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Rest};
use minijinja::{Environment, Error, ErrorKind, Value};

use super::bounds::{bound, check_width};
use super::python_json::{Layout, dumps};
use super::python_methods;
use super::strftime::strftime_now;

/// An environment with transformers' settings, functions and filters.
pub(super) fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(syntax.expect("white space settings leave the default delimiters, which are valid"));
    environment.set_unknown_method_callback(python_methods::call);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", |format: &str| strftime_now(format));
    environment.add_filter("tojson", to_json);
    environment.add_test("iterable", is_iterable);
    // Messages name the line all the same, and not every variable with all that it holds.
    environment.set_debug(false);
    bound(&mut environment);
    environment
}

/// Whether a value can be looped over, which `none` cannot, as in Jinja.
fn is_iterable(value: &Value) -> bool {
    !value.is_none() && value.try_iter().is_ok()
}

fn raise_exception(message: &str) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message.to_owned()))
}

/// `tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
fn to_json(value: &Value, arguments: Rest<Value>, named: Kwargs) -> Result<String, Error> {
    let argument = |index: usize, name: &str| -> Result<Option<Value>, Error> {
        let value = match arguments.get(index) {
            Some(value) => Some(value.clone()),
            None => named.get::<Option<Value>>(name)?,
        };
        Ok(value.filter(|value| !value.is_none() && !value.is_undefined()))
    };
    let ensure_ascii = argument(0, "ensure_ascii")?.is_some_and(|flag| flag.is_true());
    let indent = argument(1, "indent")?.map(usize::try_from).transpose()?;
    check_width(indent.unwrap_or(0))?;
    let separators = argument(2, "separators")?;
    let sort_keys = argument(3, "sort_keys")?.is_some_and(|flag| flag.is_true());
    named.assert_all_used()?;
    let (item_separator, key_separator) = match separators {
        Some(pair) => {
            let part = |index| Ok::<_, Error>(pair.get_item_by_index(index)?.to_string());
            (part(0)?, part(1)?)
        }
        None => (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()),
    };
    let layout = Layout {
        indent,
        item_separator,
        key_separator,
        sort_keys,
        ensure_ascii,
    };
    dumps(value, &layout)
}

/// A JSON value as the template engine's, with keys in their order.
pub(super) fn from_json(value: &serde_json::Value) -> Value {
    match value {
        serde_json::Value::Null => Value::from(()),
        serde_json::Value::Bool(flag) => Value::from(*flag),
        serde_json::Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(integer), _) => Value::from(integer),
            (None, Some(integer)) => Value::from(integer),
            (None, None) => Value::from(number.as_f64().unwrap_or(f64::NAN)),
        },
        serde_json::Value::String(text) => Value::from(text.as_str()),
        serde_json::Value::Array(items) => items.iter().map(from_json).collect(),
        serde_json::Value::Object(map) => {
            Value::from_pairs(map.iter().map(|(key, value)| (key.as_str(), from_json(value))))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(template: &str, context: &serde_json::Value) -> Result<String, Error> {
        environment().render_str(template, from_json(context))
    }

    #[test]
    fn json_is_written_as_transformers_writes_it() {
        let context = serde_json::json!({"x": {"b": "<é>", "a": [1, 2]}});
        let cases = [
            ("{{ x | tojson }}", "{\"b\": \"<é>\", \"a\": [1, 2]}"),
            ("{{ x | tojson(sort_keys=true) }}", "{\"a\": [1, 2], \"b\": \"<é>\"}"),
            (
                "{{ x.a | tojson(separators=(',', ':')) }}{{ x.b | tojson(ensure_ascii=true) }}",
                "[1,2]\"<\\u00e9>\"",
            ),
            ("{{ x.a | tojson(indent=1) }}", "[\n 1,\n 2\n]"),
        ];
        for (template, expected) in cases {
            assert_eq!(render(template, &context).unwrap(), expected, "{template}");
        }
        assert!(render("{{ nothing | tojson }}", &context).is_err());
        assert!(render("{{ x | tojson(colour=1) }}", &context).is_err());
    }

    #[test]
    fn blocks_leave_no_lines_and_loops_can_be_left() {
        let template = "{% for i in range(9) %}\n    {% if i == 2 %}\n{% break %}{% endif %}\n{{ i }}\n{% endfor %}\n";
        assert_eq!(render(template, &serde_json::json!({})).unwrap(), "0\n1\n");
    }

    #[test]
    fn none_cannot_be_looped_over() {
        let template = "{{ x is iterable }} {{ none is iterable }} {{ 'a' is iterable }} {{ y is iterable }}";
        assert_eq!(
            render(template, &serde_json::json!({"x": {}})).unwrap(),
            "True False True True"
        );
    }

    #[test]
    fn a_template_can_refuse() {
        let error = render("{{ raise_exception('no system role') }}", &serde_json::json!({})).unwrap_err();
        assert!(error.to_string().contains("no system role"), "{error}");
    }
}
