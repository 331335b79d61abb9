//! Tells stories: fills the slots of a plot with people and things, and answers questions about it.

use super::dice::Dice;
use super::english::{article, capitalised};
use super::lexicon::{ADJECTIVES, Kind, NAMES, NOUNS};
use super::plots::PLOTS;

/// A told story.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Story {
    pub text: String,
    /// Questions about it, each with its answer.
    pub questions: Vec<(String, String)>,
}

impl Story {
    /// A random story.
    pub(super) fn random(dice: &mut Dice) -> Self {
        let plot = dice.pick(PLOTS);
        let cast = Cast::random(dice);
        let sentences: Vec<String> = plot
            .steps
            .iter()
            .map(|ways| cast.fill(dice.pick::<&str>(ways)))
            .filter(|sentence| !sentence.is_empty())
            .collect();
        let questions = plot
            .questions
            .iter()
            .map(|(question, answer)| (cast.fill(question), cast.fill(answer)))
            .collect();
        Self {
            text: sentences.join(" "),
            questions,
        }
    }
}

/// Who and what a story is about.
struct Cast {
    /// Places in [`NAMES`]; those at even places are "she".
    people: Vec<usize>,
    /// Slot and the words for it.
    nouns: Vec<(&'static str, String)>,
}

impl Cast {
    fn random(dice: &mut Dice) -> Self {
        let mut people: Vec<usize> = (0..NAMES.len()).collect();
        dice.shuffle(&mut people);
        people.truncate(3);
        let mut nouns: Vec<(&'static str, String)> = Vec::new();
        for (slot, kind) in [
            ("thing", Kind::Thing),
            ("tool", Kind::Thing),
            ("food", Kind::Food),
            ("animal", Kind::Animal),
            ("place", Kind::Place),
            ("town", Kind::Place),
            ("job", Kind::Person),
        ] {
            let words = loop {
                let words = noun(dice, kind);
                if !nouns.iter().any(|(_, other)| *other == words) {
                    break words;
                }
            };
            nouns.push((slot, words));
        }
        Self { people, nouns }
    }

    /// `template` with every slot filled.
    fn fill(&self, template: &str) -> String {
        let mut text = String::new();
        let mut rest = template;
        while let Some((before, after)) = rest.split_once('{') {
            let (slot, after) = after.split_once('}').unwrap_or((after, ""));
            text += before;
            text += &match slot.strip_prefix('^') {
                Some(slot) => capitalised(&self.slot(slot)),
                None => self.slot(slot),
            };
            rest = after;
        }
        text + rest
    }

    fn slot(&self, slot: &str) -> String {
        match slot.split_once(':') {
            Some(("a", noun)) => {
                let words = self.noun(noun);
                format!("{} {words}", article(words))
            }
            Some((pronoun, person)) => {
                let she = self.person(person).is_multiple_of(2);
                match (pronoun, she) {
                    ("he", true) => "she",
                    ("his" | "him", true) => "her",
                    (same, _) => same,
                }
                .to_owned()
            }
            None if slot.len() == 1 => NAMES[self.person(slot)].to_owned(),
            None => self.noun(slot).to_owned(),
        }
    }

    fn person(&self, slot: &str) -> usize {
        self.people[usize::from(slot.as_bytes()[0] - b'A')]
    }

    fn noun(&self, slot: &str) -> &str {
        let found = self.nouns.iter().find(|(name, _)| *name == slot);
        &found.expect("the plots name known slots only, which a test checks").1
    }
}

fn noun(dice: &mut Dice, kind: Kind) -> String {
    let nouns: Vec<&str> = NOUNS.iter().filter(|noun| noun.2 == kind).map(|noun| noun.0).collect();
    let noun = *dice.pick(&nouns);
    if !dice.chance(30) {
        return noun.to_owned();
    }
    let qualities: Vec<&str> = ADJECTIVES
        .iter()
        .filter(|adjective| adjective.1.contains(&kind))
        .map(|adjective| adjective.0)
        .collect();
    format!("{} {noun}", dice.pick(&qualities))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_slot_of_every_plot_is_known() {
        let cast = Cast::random(&mut Dice::new(1));
        for plot in PLOTS {
            let templates = plot.steps.iter().flat_map(|ways| ways.iter().copied());
            let questions = plot
                .questions
                .iter()
                .flat_map(|(question, answer)| [*question, *answer]);
            for template in templates.chain(questions) {
                let filled = cast.fill(template);
                assert!(
                    !filled.contains(['{', '}', '^', ':']) || filled.contains("stood:"),
                    "{filled}"
                );
            }
        }
    }

    #[test]
    fn pronouns_and_articles_follow_their_words() {
        let cast = Cast {
            people: vec![0, 1, 2],
            nouns: vec![("food", "old egg".to_owned()), ("thing", "bell".to_owned())],
        };
        assert_eq!(
            cast.fill("{A} gave {his:A} {food} to {B}. {^he:B} had {a:food} and {a:thing}."),
            "Anna gave her old egg to Ben. He had an old egg and a bell."
        );
    }

    #[test]
    fn the_same_seed_tells_the_same_story() {
        assert_eq!(Story::random(&mut Dice::new(5)), Story::random(&mut Dice::new(5)));
    }
}
