//! Settings in Python scripts: `key=value` arguments, as far as they are written out.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

/// `key=value` where the value is written out: numbers, texts, `True`, `False`, lists, maps. The first of a name counts; what
/// is computed is left out.
pub(in crate::tools) fn python(text: &str) -> Map<String, Value> {
    let mut all = Map::new();
    for (name, value, _) in settings(text) {
        if !all.contains_key(&name) {
            all.insert(name, value);
        }
    }
    all
}

/// The names among them that are arguments of calls, and no variables of the script.
pub(in crate::tools) fn argument_names(text: &str) -> BTreeSet<String> {
    let arguments = settings(text).into_iter().filter(|(.., is_argument)| *is_argument);
    arguments.map(|(name, ..)| name).collect()
}

/// Name, value, and whether it stands in brackets.
fn settings(text: &str) -> Vec<(String, Value, bool)> {
    let code: String = text.lines().map(without_comment).collect::<Vec<_>>().join("\n");
    let mut all = Vec::new();
    for (place, is_argument) in equal_signs(&code) {
        let before = code[..place].trim_end();
        let after = &code[place + 1..];
        if after.starts_with('=') || before.ends_with(['=', '!', '<', '>', '+', '-', '*', '/']) {
            continue;
        }
        let start = before
            .rfind(|c: char| !(c.is_alphanumeric() || c == '_'))
            .map_or(0, |end| end + before[end..].chars().next().map_or(1, char::len_utf8));
        let name = &before[start..];
        if let (false, Some(value)) = (name.is_empty(), literal(after)) {
            all.push((name.to_owned(), value, is_argument));
        }
    }
    all
}

/// Places of `=` outside of texts, which end with their line at the latest, and whether each is in brackets.
fn equal_signs(code: &str) -> Vec<(usize, bool)> {
    let (mut places, mut quote, mut is_escaped, mut depth) = (Vec::new(), None, false, 0_usize);
    for (place, letter) in code.char_indices() {
        match (quote, letter) {
            (_, '\n') => (quote, is_escaped) = (None, false),
            (Some(_), _) if is_escaped => is_escaped = false,
            (Some(_), '\\') => is_escaped = true,
            (Some(own), other) if own == other => quote = None,
            (None, '"' | '\'') => quote = Some(letter),
            (None, '=') => places.push((place, depth > 0)),
            (None, '(' | '[' | '{') => depth += 1,
            (None, ')' | ']' | '}') => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    places
}

fn without_comment(line: &str) -> &str {
    match line.find('#') {
        Some(place) => &line[..place],
        None => line,
    }
}

fn literal(text: &str) -> Option<Value> {
    let text = text.trim_start();
    // Lists, maps and texts are written as in JSON, but for the quotes.
    if text.starts_with(['[', '{', '"'])
        && let Some(Ok(value)) = serde_json::Deserializer::from_str(text).into_iter().next()
    {
        return Some(value);
    }
    if let Some(list) = text.strip_prefix('[') {
        let (inside, _) = list.split_once(']')?;
        let words = inside.split(',').map(str::trim).filter(|word| !word.is_empty());
        return words.map(quoted).collect::<Option<Vec<_>>>().map(Value::Array);
    }
    if text.starts_with(['"', '\'']) {
        let quote = text.chars().next()?;
        let (inside, _) = text[1..].split_once(quote)?;
        return Some(Value::String(inside.to_owned()));
    }
    let word = text.split([',', ')', '\n', ' ']).next()?.trim();
    match word {
        "True" => Some(Value::Bool(true)),
        "False" => Some(Value::Bool(false)),
        "torch.bfloat16" => Some(Value::String("bfloat16".into())),
        "torch.float16" => Some(Value::String("float16".into())),
        "torch.float32" => Some(Value::String("float32".into())),
        word => serde_json::from_str(&word.replace('_', ""))
            .ok()
            .filter(Value::is_number),
    }
}

fn quoted(word: &str) -> Option<Value> {
    let inside = word.strip_prefix(['"', '\''])?.strip_suffix(['"', '\''])?;
    Some(Value::String(inside.to_owned()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn arguments_of_scripts_are_read_where_they_are_written_out() {
        let script = "x = f(a == 3)  # r=99\nmodel = g(\n    r = 16, target_modules = [\"q_proj\", 'v_proj'],\n    load_in_4bit=True,\n\
                      \n    max_seq_length = 2_048, name='ü', rate=compute(), dtype=None,\n\
                      layers=[0, 1], more={\"steps\": 5}, arguments=\"momentum=0.9,a=1\")\nr = 4\n";
        let read = python(script);
        assert_eq!(read["r"], json!(16));
        assert_eq!(read["target_modules"], json!(["q_proj", "v_proj"]));
        assert_eq!(
            (&read["load_in_4bit"], &read["max_seq_length"]),
            (&json!(true), &json!(2048))
        );
        assert_eq!((&read["layers"], &read["more"]), (&json!([0, 1]), &json!({"steps": 5})));
        assert!(read["arguments"] == "momentum=0.9,a=1" && !read.contains_key("momentum"));
        let names = argument_names("a = 1\nf(b=2, c = [3])\nd = g(e='=')\n");
        assert_eq!(names.into_iter().collect::<Vec<_>>(), ["b", "c", "e"]);
        assert!(!read.contains_key("rate") && !read.contains_key("dtype") && !read.contains_key("a"));
        for odd in ["=", "a=[", "é=1", "a='", "==", "a=\"ü"] {
            python(odd);
        }
    }
}
