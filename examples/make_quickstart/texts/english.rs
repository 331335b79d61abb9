//! Says a meaning in English.

use super::lexicon::{ADJECTIVES, COUNTS, LINKS, NAMES, NOUNS, PREPOSITIONS, TIMES, VERBS};
use super::meaning::{Clause, Complement, Count, Phrase, Predicate, Sentence};

/// `sentence` in English, with a capital and a full stop.
pub(super) fn say(sentence: &Sentence) -> String {
    let mut text = clause(&sentence.first, sentence.past);
    if let Some((link, second)) = &sentence.second {
        text = format!("{text} {} {}", LINKS[*link], clause(second, sentence.past));
    }
    match sentence.time {
        // A short sentence has the time at its end, a long one at its start.
        Some(time) if sentence.second.is_none() => text = format!("{text} {}", TIMES[time].0),
        Some(time) => text = format!("{} {text}", TIMES[time].0),
        None => {}
    }
    capitalised(&text) + "."
}

/// `text` with a capital letter at its start.
pub(super) fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    letters
        .next()
        .map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

/// `phrase` in English.
pub(super) fn phrase(phrase: &Phrase) -> String {
    let Phrase::Noun {
        noun,
        adjective,
        count,
        definite,
    } = *phrase
    else {
        return name(phrase).to_owned();
    };
    let (singular, plural, _) = NOUNS[noun];
    let adjective = adjective.map(|place| ADJECTIVES[place].0);
    let mut words = Vec::new();
    match (count, definite) {
        (_, true) => words.push("the"),
        (Count::One, false) => words.push(article(adjective.unwrap_or(singular))),
        _ => {}
    }
    if let Count::Exactly(number) = count {
        words.push(COUNTS[number]);
    }
    words.extend(adjective);
    words.push(if count == Count::One { singular } else { plural });
    words.join(" ")
}

/// "a" or "an", as `word` asks.
pub(super) fn article(word: &str) -> &'static str {
    if word.starts_with(['a', 'e', 'i', 'o', 'u']) {
        "an"
    } else {
        "a"
    }
}

fn name(phrase: &Phrase) -> &'static str {
    match phrase {
        Phrase::Name(place) => NAMES[*place],
        Phrase::Noun { noun, .. } => NOUNS[*noun].0,
    }
}

fn clause(clause: &Clause, past: bool) -> String {
    let plural = clause.subject.is_plural();
    let mut text = phrase(&clause.subject);
    match clause.predicate {
        Predicate::Is { adjective } => {
            let not = if clause.negated { " not" } else { "" };
            text += &format!(" {}{not} {}", is(past, plural), ADJECTIVES[adjective].0);
        }
        Predicate::Acts {
            verb: place,
            complement,
        } => {
            text += &format!(" {}", verb(place, past, plural, clause.negated));
            match complement {
                Complement::Nothing => {}
                Complement::Towards(place) => text += &format!(" to {}", phrase(&place)),
                Complement::Object(object) => text += &format!(" {}", phrase(&object)),
                Complement::Give { what, to } => text += &format!(" {} to {}", phrase(&what), phrase(&to)),
            }
        }
    }
    if let Some((preposition, place)) = &clause.place {
        text += &format!(" {} {}", PREPOSITIONS[*preposition], phrase(place));
    }
    text
}

fn is(past: bool, plural: bool) -> &'static str {
    match (past, plural) {
        (true, false) => "was",
        (true, true) => "were",
        (false, false) => "is",
        (false, true) => "are",
    }
}

fn verb(place: usize, past: bool, plural: bool, negated: bool) -> String {
    let (base, third, was, _) = VERBS[place];
    match (negated, past, plural) {
        (true, true, _) => format!("did not {base}"),
        (true, false, false) => format!("does not {base}"),
        (true, false, true) => format!("do not {base}"),
        (false, true, _) => was.to_owned(),
        (false, false, false) => third.to_owned(),
        (false, false, true) => base.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::dice::Dice;
    use super::*;

    fn noun(singular: &str, count: Count, definite: bool) -> Phrase {
        let noun = NOUNS.iter().position(|noun| noun.0 == singular).unwrap();
        Phrase::Noun {
            noun,
            adjective: None,
            count,
            definite,
        }
    }

    #[test]
    fn nouns_take_their_article_and_number() {
        assert_eq!(phrase(&noun("apple", Count::One, false)), "an apple");
        assert_eq!(phrase(&noun("wolf", Count::Several, true)), "the wolves");
        assert_eq!(phrase(&noun("sheep", Count::Exactly(1), false)), "three sheep");
    }

    #[test]
    fn verbs_agree_with_subject_and_tense() {
        let verb_of = |base| VERBS.iter().position(|verb| verb.0 == base).unwrap();
        let sentence = |subject, past, negated| {
            let predicate = Predicate::Acts {
                verb: verb_of("go"),
                complement: Complement::Towards(noun("mill", Count::One, true)),
            };
            let first = Clause {
                subject,
                predicate,
                negated,
                place: None,
            };
            say(&Sentence {
                first,
                second: None,
                time: None,
                past,
            })
        };
        let (one, many) = (noun("man", Count::One, true), noun("man", Count::Several, true));
        assert_eq!(sentence(one, false, false), "The man goes to the mill.");
        assert_eq!(sentence(many, false, true), "The men do not go to the mill.");
        assert_eq!(sentence(many, true, false), "The men went to the mill.");
        assert_eq!(sentence(one, true, true), "The man did not go to the mill.");
    }

    #[test]
    fn every_sentence_is_capitalised_and_ends() {
        let mut dice = Dice::new(11);
        for _ in 0..200 {
            let text = say(&Sentence::random(&mut dice));
            assert!(text.starts_with(char::is_uppercase) && text.ends_with('.') && !text.contains("  "));
        }
    }
}
