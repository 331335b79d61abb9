//! Bounds that keep a chat template from ending or starving the program.

use minijinja::value::{Kwargs, Rest};
use minijinja::{Environment, Error, ErrorKind, State, Value};

/// Instructions that one rendering may take. Long chats take some ten thousand; these take
/// about a second.
const FUEL: u64 = 20_000_000;
/// Bytes of a template. The longest real ones have 30,000.
const SOURCE_BYTES: usize = 1 << 20;
/// Operators of one tag, each of which may nest the expression by one level.
const OPERATORS: usize = 1000;
/// Columns that a value may be padded or indented by.
const WIDTH: usize = 10_000;
/// Names of the engine's own filters, which no template can write.
const INDENT: &str = "own indent";
const FORMAT: &str = "own format";

/// Bounds what a rendering in this environment may take.
pub(super) fn bound(environment: &mut Environment<'static>) {
    environment.set_fuel(Some(FUEL));
    environment.add_filter(INDENT, minijinja::filters::indent);
    environment.add_filter("indent", indent);
    environment.add_filter(FORMAT, minijinja::filters::format);
    environment.add_filter("format", format);
}

/// Refuses a template that the template engine could not compile within a thread's stack.
pub(super) fn check_size(source: &str) -> Result<(), Error> {
    let too_large = |what: String| Err(Error::new(ErrorKind::SyntaxError, what));
    if source.len() > SOURCE_BYTES {
        let bytes = source.len();
        return too_large(format!(
            "it has {bytes} bytes, more than the {SOURCE_BYTES} that are read"
        ));
    }
    let branches = tags(source)
        .filter(|tag| tag.trim_start_matches('-').trim_start().starts_with("elif"))
        .count();
    if branches > OPERATORS {
        return too_large(format!(
            "it has {branches} `elif`, more than the {OPERATORS} that are read"
        ));
    }
    match tags(source).map(operators).max() {
        Some(most) if most > OPERATORS => too_large(format!(
            "one of its tags has {most} operators, more than the {OPERATORS} that are read"
        )),
        _ => Ok(()),
    }
}

/// Refuses a template that adds text which it calls `safe` to other text: Jinja escapes the other, as for a web page. (`~` joins
/// texts as they are.)
pub(super) fn check_safe(source: &str) -> Result<(), Error> {
    let joins = |tag: &str| {
        let open: String = unquoted(tag);
        let mut filters = open.split('|').skip(1).map(str::trim_start);
        let is_safe = filters.any(|filter| filter.split(|c: char| !c.is_alphanumeric()).next() == Some("safe"));
        is_safe && open.trim_matches(['-', '+']).contains('+')
    };
    match tags(source).find(|tag| joins(tag)) {
        None => Ok(()),
        Some(tag) => Err(Error::new(
            ErrorKind::SyntaxError,
            format!(
                "`{}` adds text marked `safe` to other text, which Jinja escapes: leave `| safe` out, or write `~`",
                tag.trim()
            ),
        )),
    }
}

/// A tag without its quoted texts.
fn unquoted(tag: &str) -> String {
    let mut quote = None;
    let keep = |c: &char| match quote {
        Some(open) => {
            if *c == open {
                quote = None;
            }
            false
        }
        None => {
            if matches!(c, '"' | '\'') {
                quote = Some(*c);
            }
            quote.is_none()
        }
    };
    tag.chars().filter(keep).collect()
}

/// The inner text of each tag.
fn tags(source: &str) -> impl Iterator<Item = &str> {
    let mut rest = source;
    std::iter::from_fn(move || {
        let opens = |pair: &[u8]| pair == b"{{" || pair == b"{%";
        let start = rest.as_bytes().windows(2).position(opens)?;
        let inner = &rest[start + 2..];
        let end = end_of_tag(inner);
        rest = &inner[end..];
        Some(&inner[..end])
    })
}

/// Place where a tag ends: at a closing bracket outside of quotes.
fn end_of_tag(inner: &str) -> usize {
    let (mut quote, mut before) = (None, ' ');
    for (at, c) in inner.char_indices() {
        match quote {
            Some(open) if c == open && before != '\\' => quote = None,
            Some(_) => {}
            None if matches!(c, '"' | '\'') => quote = Some(c),
            None if c == '}' && matches!(before, '}' | '%') => return at,
            None => {}
        }
        before = if before == '\\' && c == '\\' { ' ' } else { c };
    }
    inner.len()
}

/// Operators outside of quotes, words such as `and` included.
fn operators(tag: &str) -> usize {
    let (mut quote, mut count) = (None, 0);
    for word in tag.split_inclusive(|c: char| !c.is_alphanumeric()) {
        let (name, last) = match word.char_indices().next_back() {
            Some((at, last)) if !last.is_alphanumeric() => (&word[..at], Some(last)),
            _ => (word, None),
        };
        if quote.is_none() {
            count += usize::from(matches!(
                name,
                "and" | "or" | "not" | "in" | "is" | "if" | "elif" | "else"
            ));
        }
        match (quote, last) {
            (Some(open), Some(c)) if c == open => quote = None,
            (None, Some(c @ ('"' | '\''))) => quote = Some(c),
            (None, Some(c)) => count += usize::from("+-*/%~|.([{<>=".contains(c)),
            _ => {}
        }
    }
    count
}

fn indent(state: &mut State, value: Value, arguments: Rest<Value>, named: Kwargs) -> Result<Value, Error> {
    let width = named.peek::<Option<Value>>("width")?;
    for width in arguments.first().into_iter().chain(&width) {
        check_width(width.clone().try_into().unwrap_or(0))?;
    }
    let mut all: Vec<Value> = std::iter::once(value).chain(arguments.iter().cloned()).collect();
    all.push(named.into());
    state.apply_filter(INDENT, &all)
}

fn format(state: &mut State, text: Value, arguments: Rest<Value>, named: Kwargs) -> Result<Value, Error> {
    let widths = text.as_str().unwrap_or_default().split(|c: char| !c.is_ascii_digit());
    for width in widths.filter(|digits| !digits.is_empty()) {
        check_width(width.parse().unwrap_or(usize::MAX))?;
    }
    let mut all: Vec<Value> = std::iter::once(text).chain(arguments.iter().cloned()).collect();
    if named.args().next().is_some() {
        all.push(named.into());
    }
    state.apply_filter(FORMAT, &all)
}

/// Refuses padding that no chat needs.
pub(super) fn check_width(width: usize) -> Result<(), Error> {
    match width > WIDTH {
        true => Err(Error::new(
            ErrorKind::InvalidOperation,
            format!("a width of {width} is more than the {WIDTH} columns that are allowed"),
        )),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::jinja::environment;
    use super::*;

    fn render(template: &str) -> Result<String, Error> {
        check_size(template)?;
        environment().render_str(template, ())
    }

    #[test]
    fn what_real_templates_do_is_untouched() {
        assert_eq!(render("{{ 'a\\nb' | indent(2) }}").unwrap(), "a\n  b");
        assert_eq!(render("{{ 'a\\nb' | indent(width=1, first=true) }}").unwrap(), " a\n b");
        assert_eq!(render("{{ '%03d|%s' | format(7, 123456) }}").unwrap(), "007|123456");
        let quoted = format!("{{{{ '{}' | length }}}}", "+".repeat(5000));
        assert_eq!(render(&quoted).unwrap(), "5000");
        let text = "{{ 'it\\'s }} + ' }} + ".repeat(2000);
        assert!(render(&text).unwrap().starts_with("it's }} +  + "));
    }

    #[test]
    fn a_template_without_end_or_measure_is_an_error() {
        for template in [
            "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}".to_owned(),
            "{{ 'a' | indent(1000000000) }}".to_owned(),
            "{{ 'a\\nb' | indent(width=1000000000) }}".to_owned(),
            "{{ '%1000000000d' | format(1) }}".to_owned(),
            "{{ [1] | tojson(indent=1000000000) }}".to_owned(),
            format!("{{{{ 1{} }}}}", "+1".repeat(100_000)),
            format!("{{{{ {}1 }}}}", "not ".repeat(100_000)),
            format!("{{{{ {}1{} }}}}", "(".repeat(100_000), ")".repeat(100_000)),
            format!("{{% if x{} %}}{{% endif %}}", " or x".repeat(100_000)),
            format!("{{% if x %}}{}{{% endif %}}", "{% elif x %}".repeat(100_000)),
            "{% if x %}".repeat(100_000),
            "a".repeat(SOURCE_BYTES + 1),
        ] {
            let shown: String = template.chars().take(60).collect();
            assert!(render(&template).is_err(), "{shown}");
        }
    }
}
