//! `strftime_now` of chat templates.
//!
//! Design note: several published templates print the date into the system prompt. Rendering today's would make the
//! same data other tokens tomorrow: a study resumed the next day would measure something else, and cached tokens would
//! never be found again. So "now" is one fixed day, the one that those templates print themselves where
//! `strftime_now` is absent.

/// The day that templates are told, a Friday.
const TODAY: Day = Day {
    year: 2024,
    month: 7,
    day: 26,
    day_of_year: 208,
};

struct Day {
    year: u32,
    month: u32,
    day: u32,
    day_of_year: u32,
}

/// The day that templates are told, as `2024-07-26`.
pub(crate) fn told_day() -> String {
    strftime_now("%F")
}

/// Formats the fixed day as Python's `datetime.strftime` does; the time of day is midnight. Unknown directives are
/// left as they stand.
pub(super) fn strftime_now(format: &str) -> String {
    let mut text = String::with_capacity(format.len() + 16);
    let mut characters = format.chars();
    while let Some(character) = characters.next() {
        if character != '%' {
            text.push(character);
            continue;
        }
        let mut directive = characters.next();
        let padded = directive != Some('-');
        if !padded {
            directive = characters.next();
        }
        match directive.and_then(|directive| expand(directive, padded)) {
            Some(part) => text.push_str(&part),
            None => text.extend(std::iter::once('%').chain((!padded).then_some('-')).chain(directive)),
        }
    }
    text
}

fn expand(directive: char, padded: bool) -> Option<String> {
    let number = |value: u32, width: usize| {
        if padded {
            format!("{value:0width$}")
        } else {
            value.to_string()
        }
    };
    Some(match directive {
        'Y' => TODAY.year.to_string(),
        'y' => number(TODAY.year % 100, 2),
        'm' => number(TODAY.month, 2),
        'd' => number(TODAY.day, 2),
        'e' => TODAY.day.to_string(),
        'j' => number(TODAY.day_of_year, 3),
        'B' => "July".to_owned(),
        'b' | 'h' => "Jul".to_owned(),
        'A' => "Friday".to_owned(),
        'a' => "Fri".to_owned(),
        'w' | 'u' => "5".to_owned(),
        'H' | 'M' | 'S' => number(0, 2),
        'I' => "12".to_owned(),
        'p' => "AM".to_owned(),
        'f' => "000000".to_owned(),
        'F' => strftime_now("%Y-%m-%d"),
        'T' | 'X' => strftime_now("%H:%M:%S"),
        'D' | 'x' => strftime_now("%m/%d/%y"),
        'c' => strftime_now("%a %b %e %H:%M:%S %Y"),
        'R' => strftime_now("%H:%M"),
        'Z' | 'z' => String::new(),
        'n' => "\n".to_owned(),
        't' => "\t".to_owned(),
        '%' => "%".to_owned(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::{strftime_now, told_day};

    #[test]
    fn the_formats_that_templates_use() {
        assert_eq!(strftime_now("%d %b %Y"), "26 Jul 2024");
        assert_eq!(strftime_now("%Y-%m-%d"), "2024-07-26");
        assert_eq!(told_day(), "2024-07-26");
        assert_eq!(strftime_now("%A, %B %-d, %Y"), "Friday, July 26, 2024");
        assert_eq!(strftime_now("%-m 100%% %Q %-Q %"), "7 100% %Q %-Q %");
    }
}
