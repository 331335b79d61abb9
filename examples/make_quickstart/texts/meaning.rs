//! Meaning of a sentence, apart from any tongue: clauses over the concepts of the lexicon, and their random making.

use super::dice::Dice;
use super::lexicon::{ADJECTIVES, COUNTS, Frame, Kind, LINKS, NAMES, NOUNS, PREPOSITIONS, TIMES, VERBS};

/// How many of a noun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Count {
    One,
    Several,
    /// Place in [`COUNTS`].
    Exactly(usize),
}

/// Somebody or something. The numbers are places in the lexicon's tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phrase {
    Name(usize),
    Noun {
        noun: usize,
        adjective: Option<usize>,
        count: Count,
        definite: bool,
    },
}

/// Predicate that is said of the subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Predicate {
    /// Quality that the subject has.
    Is {
        adjective: usize,
    },
    Acts {
        verb: usize,
        complement: Complement,
    },
}

/// Complement that the verb's frame asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Complement {
    Nothing,
    Towards(Phrase),
    Object(Phrase),
    Give { what: Phrase, to: Phrase },
}

/// One subject with its predicate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Clause {
    pub subject: Phrase,
    pub predicate: Predicate,
    pub negated: bool,
    /// A preposition and a place.
    pub place: Option<(usize, Phrase)>,
}

/// One clause or two, at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sentence {
    pub first: Clause,
    /// A link and a clause.
    pub second: Option<(usize, Clause)>,
    pub time: Option<usize>,
    pub past: bool,
}

impl Phrase {
    /// A random noun of one of these kinds, or, where persons are asked for, half the time a name.
    pub(super) fn random(dice: &mut Dice, kinds: &[Kind]) -> Self {
        if kinds.contains(&Kind::Person) && dice.chance(40) {
            return Self::Name(dice.below(NAMES.len()));
        }
        Self::noun(dice, kinds)
    }

    fn noun(dice: &mut Dice, kinds: &[Kind]) -> Self {
        let kind = *dice.pick(kinds);
        let noun = place_of(dice, NOUNS.len(), |place| NOUNS[place].2 == kind);
        let adjective = dice
            .chance(45)
            .then(|| place_of(dice, ADJECTIVES.len(), |place| ADJECTIVES[place].1.contains(&kind)));
        let count = match dice.below(10) {
            0..6 => Count::One,
            6..8 => Count::Several,
            _ => Count::Exactly(dice.below(COUNTS.len())),
        };
        Self::Noun {
            noun,
            adjective,
            count,
            definite: dice.chance(55),
        }
    }

    /// A place where something happens: always "the ..." and one only.
    pub(super) fn place(dice: &mut Dice) -> Self {
        match Self::noun(dice, &[Kind::Place]) {
            Self::Noun { noun, adjective, .. } => Self::Noun {
                noun,
                adjective,
                count: Count::One,
                definite: true,
            },
            name @ Self::Name(_) => name,
        }
    }

    /// Whether the verb takes its plural form.
    pub(super) fn is_plural(&self) -> bool {
        matches!(self, Self::Noun { count, .. } if *count != Count::One)
    }

    fn kind(&self) -> Kind {
        match self {
            Self::Name(_) => Kind::Person,
            Self::Noun { noun, .. } => NOUNS[*noun].2,
        }
    }
}

impl Clause {
    /// A random clause about a person or an animal.
    pub(super) fn random(dice: &mut Dice) -> Self {
        let kinds = if dice.chance(70) { Kind::Person } else { Kind::Animal };
        let subject = Phrase::random(dice, &[kinds]);
        Self::about(dice, subject)
    }

    /// A random clause with this subject.
    pub(super) fn about(dice: &mut Dice, subject: Phrase) -> Self {
        let predicate = if dice.chance(15) {
            let kind = subject.kind();
            Predicate::Is {
                adjective: place_of(dice, ADJECTIVES.len(), |place| ADJECTIVES[place].1.contains(&kind)),
            }
        } else {
            acts(dice, subject.kind())
        };
        let moves = matches!(
            predicate,
            Predicate::Acts {
                complement: Complement::Towards(_),
                ..
            }
        );
        let place = (!moves && dice.chance(40)).then(|| (dice.below(PREPOSITIONS.len()), Phrase::place(dice)));
        Self {
            subject,
            predicate,
            negated: dice.chance(12),
            place,
        }
    }
}

impl Sentence {
    /// A random sentence; two clauses in a third of them.
    pub(super) fn random(dice: &mut Dice) -> Self {
        let first = Clause::random(dice);
        let second = dice.chance(30).then(|| (dice.below(LINKS.len()), Clause::random(dice)));
        let time = dice.chance(45).then(|| dice.below(TIMES.len()));
        let past = match time {
            Some(time) => TIMES[time].1,
            None => dice.chance(60),
        };
        Self {
            first,
            second,
            time,
            past,
        }
    }
}

fn acts(dice: &mut Dice, subject: Kind) -> Predicate {
    let verb = place_of(dice, VERBS.len(), |place| {
        subject == Kind::Person || matches!(VERBS[place].3, Frame::Alone | Frame::Towards | Frame::Object(_))
    });
    let complement = match VERBS[verb].3 {
        Frame::Alone => Complement::Nothing,
        Frame::Towards => Complement::Towards(Phrase::place(dice)),
        Frame::Object(kinds) => Complement::Object(Phrase::random(dice, kinds)),
        Frame::Give => Complement::Give {
            what: Phrase::random(dice, &[Kind::Thing, Kind::Food]),
            to: Phrase::random(dice, &[Kind::Person]),
        },
    };
    Predicate::Acts { verb, complement }
}

/// A random place in `0..end` that `fits`; at least one must.
fn place_of(dice: &mut Dice, end: usize, fits: impl Fn(usize) -> bool) -> usize {
    let places: Vec<usize> = (0..end).filter(|place| fits(*place)).collect();
    *dice.pick(&places)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_says_the_same() {
        let mut first = Dice::new(3);
        let mut second = Dice::new(3);
        for _ in 0..100 {
            assert_eq!(Sentence::random(&mut first), Sentence::random(&mut second));
        }
    }

    #[test]
    fn complements_are_what_the_verb_asks_for() {
        let mut dice = Dice::new(4);
        for _ in 0..500 {
            let Predicate::Acts { verb, complement } = Clause::random(&mut dice).predicate else {
                continue;
            };
            let fits = match (VERBS[verb].3, complement) {
                (Frame::Alone, Complement::Nothing) => true,
                (Frame::Towards, Complement::Towards(place)) => place.kind() == Kind::Place,
                (Frame::Object(kinds), Complement::Object(object)) => kinds.contains(&object.kind()),
                (Frame::Give, Complement::Give { to, .. }) => to.kind() == Kind::Person,
                _ => false,
            };
            assert!(fits, "{:?} with {complement:?}", VERBS[verb]);
        }
    }
}
