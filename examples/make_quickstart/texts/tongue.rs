//! Two invented tongues: Marrin, which the base model learns, and its daughter Oskel, which the fine-tuning teaches.
//!
//! Both name the concepts of the lexicon with roots made from syllables. Oskel keeps about half of Marrin's roots,
//! worn down by regular sound changes, and has new ones for the rest; its grammar is turned round:
//!
//! | | Marrin | Oskel |
//! |---|---|---|
//! | order | subject, verb, object, place, time | time, subject, place, object, verb |
//! | adjective, number word | after the noun | before the noun |
//! | place and direction | preposition | postposition |
//! | plural, definite, past | suffixes | other suffixes, definite as a prefix |
//!
//! Names of people stay as they are.

use std::collections::BTreeSet;

use super::dice::Dice;
use super::lexicon::{ADJECTIVES, COUNTS, LINKS, NAMES, NOUNS, PREPOSITIONS, TIMES, VERBS};
use super::meaning::{Clause, Complement, Count, Phrase, Predicate, Sentence};

/// Order of heads: before what depends on them (English-like) or after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    HeadFirst,
    HeadLast,
}

/// The small pieces of grammar.
#[derive(Clone, Debug)]
struct Grammar {
    order: Order,
    plural: &'static str,
    definite: &'static str,
    past: &'static str,
    /// Word for "not"; it stands next to the verb.
    not: &'static str,
    /// Word for "is"; a quality needs none where it is empty.
    is: &'static str,
    towards: &'static str,
}

/// An invented tongue: its words by concept, and its grammar.
#[derive(Clone, Debug)]
pub(super) struct Tongue {
    words: Words,
    grammar: Grammar,
}

#[derive(Clone, Debug)]
struct Words {
    nouns: Vec<String>,
    adjectives: Vec<String>,
    verbs: Vec<String>,
    times: Vec<String>,
    prepositions: Vec<String>,
    links: Vec<String>,
    counts: Vec<String>,
}

impl Tongue {
    /// The tongue that the base model learns.
    pub(super) fn marrin() -> Self {
        let mut roots = Roots::new(0x6d61_7272_6933, "bdfgklmnprstvz", "aeiou");
        Self {
            words: Words::from_words(|_| roots.next()),
            grammar: Grammar {
                order: Order::HeadFirst,
                plural: "im",
                definite: "o",
                past: "ar",
                not: "ne",
                is: "sa",
                towards: "al",
            },
        }
    }

    /// Daughter of Marrin, which only the fine-tuning data speaks.
    pub(super) fn oskel() -> Self {
        let mother = Self::marrin();
        let mut roots = Roots::new(0x6f73_6b65_6c21, "bdfghklmnprsvw", "aeiou");
        let mut kept = Dice::new(77);
        let mut inherited = mother.words.all().into_iter();
        let words = Words::from_words(|_| {
            let worn = inherited.next().map(|word| worn(word)).unwrap_or_default();
            // A worn word that has become another's double is replaced too.
            if kept.chance(50) && roots.claim(&worn) {
                worn
            } else {
                roots.next()
            }
        });
        Self {
            words,
            grammar: Grammar {
                order: Order::HeadLast,
                plural: "en",
                definite: "u",
                past: "ith",
                not: "mo",
                is: "",
                towards: "dar",
            },
        }
    }

    /// `sentence` in this tongue, without a capital, with a full stop.
    pub(super) fn say(&self, sentence: &Sentence) -> String {
        let mut words = self.clause(&sentence.first, sentence.past);
        if let Some((link, second)) = &sentence.second {
            words.push(self.words.links[*link].clone());
            words.extend(self.clause(second, sentence.past));
        }
        if let Some(time) = sentence.time {
            let word = self.words.times[time].clone();
            match self.grammar.order {
                Order::HeadFirst => words.push(word),
                Order::HeadLast => words.insert(0, word),
            }
        }
        words.retain(|word| !word.is_empty());
        words.join(" ") + "."
    }

    fn clause(&self, clause: &Clause, past: bool) -> Vec<String> {
        let verb = self.verb(clause, past);
        let place = clause
            .place
            .map(|(preposition, place)| self.related(&place, &self.words.prepositions[preposition]))
            .unwrap_or_default();
        let complement = self.complement(&clause.predicate);
        let subject = self.phrase(&clause.subject);
        match self.grammar.order {
            Order::HeadFirst => [subject, verb, complement, place].concat(),
            Order::HeadLast => [subject, place, complement, verb].concat(),
        }
    }

    fn verb(&self, clause: &Clause, past: bool) -> Vec<String> {
        let ending = if past { self.grammar.past } else { "" };
        let not = if clause.negated { self.grammar.not } else { "" }.to_owned();
        match (clause.predicate, self.grammar.order) {
            (Predicate::Is { adjective }, Order::HeadFirst) => {
                let is = format!("{}{ending}", self.grammar.is);
                vec![not, is, self.words.adjectives[adjective].clone()]
            }
            // The quality itself takes the ending of the past.
            (Predicate::Is { adjective }, Order::HeadLast) => {
                vec![format!("{}{ending}", self.words.adjectives[adjective]), not]
            }
            (Predicate::Acts { verb, .. }, Order::HeadFirst) => {
                vec![not, format!("{}{ending}", self.words.verbs[verb])]
            }
            (Predicate::Acts { verb, .. }, Order::HeadLast) => {
                vec![format!("{}{ending}", self.words.verbs[verb]), not]
            }
        }
    }

    fn complement(&self, predicate: &Predicate) -> Vec<String> {
        let Predicate::Acts { complement, .. } = predicate else {
            return Vec::new();
        };
        match complement {
            Complement::Nothing => Vec::new(),
            Complement::Towards(place) => self.related(place, self.grammar.towards),
            Complement::Object(object) => self.phrase(object),
            Complement::Give { what, to } => match self.grammar.order {
                Order::HeadFirst => [self.phrase(what), self.related(to, self.grammar.towards)].concat(),
                Order::HeadLast => [self.related(to, self.grammar.towards), self.phrase(what)].concat(),
            },
        }
    }

    /// A phrase with the word that says how the rest relates to it.
    fn related(&self, phrase: &Phrase, relation: &str) -> Vec<String> {
        let mut words = self.phrase(phrase);
        match self.grammar.order {
            Order::HeadFirst => words.insert(0, relation.to_owned()),
            Order::HeadLast => words.push(relation.to_owned()),
        }
        words
    }

    fn phrase(&self, phrase: &Phrase) -> Vec<String> {
        let (noun, adjective, count, definite) = match *phrase {
            Phrase::Name(name) => return vec![NAMES[name].to_owned()],
            Phrase::Noun {
                noun,
                adjective,
                count,
                definite,
            } => (noun, adjective, count, definite),
        };
        let mut word = self.words.nouns[noun].clone();
        if count != Count::One {
            word += self.grammar.plural;
        }
        if definite {
            word = match self.grammar.order {
                Order::HeadFirst => format!("{word}{}", self.grammar.definite),
                Order::HeadLast => format!("{}{word}", self.grammar.definite),
            };
        }
        let adjective = adjective.map(|place| self.words.adjectives[place].clone());
        let count = match count {
            Count::Exactly(number) => Some(self.words.counts[number].clone()),
            _ => None,
        };
        let mut words: Vec<String> = [count, adjective].into_iter().flatten().collect();
        words.push(word);
        if self.grammar.order == Order::HeadFirst {
            words.reverse();
        }
        words
    }
}

impl Words {
    /// One word for each concept; the table's order is fixed, so a seeded source gives the same tongue each time.
    fn from_words(mut word: impl FnMut(&str) -> String) -> Self {
        Self {
            nouns: NOUNS.iter().map(|noun| word(noun.0)).collect(),
            adjectives: ADJECTIVES.iter().map(|adjective| word(adjective.0)).collect(),
            verbs: VERBS.iter().map(|verb| word(verb.0)).collect(),
            times: TIMES.iter().map(|time| word(time.0)).collect(),
            prepositions: PREPOSITIONS.iter().map(|preposition| word(preposition)).collect(),
            links: LINKS.iter().map(|link| word(link)).collect(),
            counts: COUNTS.iter().map(|count| word(count)).collect(),
        }
    }

    fn all(&self) -> Vec<&String> {
        [
            &self.nouns,
            &self.adjectives,
            &self.verbs,
            &self.times,
            &self.prepositions,
            &self.links,
            &self.counts,
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

/// Makes roots that differ from each other.
struct Roots {
    dice: Dice,
    consonants: Vec<char>,
    vowels: Vec<char>,
    taken: BTreeSet<String>,
}

impl Roots {
    fn new(seed: u64, consonants: &str, vowels: &str) -> Self {
        Self {
            dice: Dice::new(seed),
            consonants: consonants.chars().collect(),
            vowels: vowels.chars().collect(),
            taken: BTreeSet::new(),
        }
    }

    /// A root of one closed or two open syllables that nobody has yet.
    fn next(&mut self) -> String {
        loop {
            let pattern = *self.dice.pick(&["cvc", "cvcv", "cvcvc", "vcvc"]);
            let mut root = String::new();
            for sound in pattern.chars() {
                let sounds = if sound == 'c' { &self.consonants } else { &self.vowels };
                root.push(*self.dice.pick(sounds));
            }
            if self.claim(&root) {
                return root;
            }
        }
    }

    /// Takes `root`, unless it is taken.
    fn claim(&mut self, root: &str) -> bool {
        self.taken.insert(root.to_owned())
    }
}

/// A Marrin word after Oskel's sound changes: p, t and k soften, z becomes s, a final vowel falls.
fn worn(word: &str) -> String {
    let mut worn: String = word
        .chars()
        .map(|sound| match sound {
            'p' => 'f',
            't' => 'd',
            'k' => 'h',
            'z' => 's',
            'a' => 'o',
            other => other,
        })
        .collect();
    if worn.ends_with(['a', 'e', 'i', 'o', 'u']) && worn.len() > 3 {
        worn.pop();
    }
    worn
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_concepts_share_a_word() {
        for tongue in [Tongue::marrin(), Tongue::oskel()] {
            let words = tongue.words.all();
            assert_eq!(words.iter().collect::<BTreeSet<_>>().len(), words.len());
        }
    }

    #[test]
    fn the_daughter_keeps_about_half_of_the_roots() {
        let (mother, daughter) = (Tongue::marrin(), Tongue::oskel());
        let (mother, daughter) = (mother.words.all(), daughter.words.all());
        let kept = mother
            .iter()
            .zip(&daughter)
            .filter(|(old, new)| worn(old) == ***new)
            .count();
        let share = kept as f64 / mother.len() as f64;
        assert!((0.35..0.6).contains(&share), "{share}");
    }

    #[test]
    fn the_daughter_turns_the_order_round() {
        let noun = |noun, definite| Phrase::Noun {
            noun,
            adjective: Some(0),
            count: Count::Several,
            definite,
        };
        let first = Clause {
            subject: Phrase::Name(0),
            predicate: Predicate::Acts {
                verb: 20,
                complement: Complement::Object(noun(3, true)),
            },
            negated: true,
            place: None,
        };
        let sentence = Sentence {
            first,
            second: None,
            time: Some(0),
            past: true,
        };
        let (marrin, oskel) = (Tongue::marrin(), Tongue::oskel());
        let (old, new) = (&marrin.words, &oskel.words);
        assert_eq!(
            marrin.say(&sentence),
            format!(
                "Anna ne {}ar {}imo {} {}.",
                old.verbs[20], old.nouns[3], old.adjectives[0], old.times[0]
            )
        );
        assert_eq!(
            oskel.say(&sentence),
            format!(
                "{} Anna {} u{}en {}ith mo.",
                new.times[0], new.adjectives[0], new.nouns[3], new.verbs[20]
            )
        );
    }
}
