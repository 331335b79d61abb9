//! The words of the little world that all texts are about: what exists in it, and the English for it.
//!
//! A concept is known by its place in one of these tables. The invented tongues (`tongue.rs`) name the same concepts.

/// Kind of thing that a noun stands for; it decides which verbs and adjectives go with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Person,
    Animal,
    Thing,
    Food,
    Place,
}

/// Singular, plural, kind.
pub(super) type Noun = (&'static str, &'static str, Kind);

pub(super) const NOUNS: &[Noun] = &[
    ("farmer", "farmers", Kind::Person),
    ("baker", "bakers", Kind::Person),
    ("teacher", "teachers", Kind::Person),
    ("child", "children", Kind::Person),
    ("sister", "sisters", Kind::Person),
    ("brother", "brothers", Kind::Person),
    ("mother", "mothers", Kind::Person),
    ("father", "fathers", Kind::Person),
    ("king", "kings", Kind::Person),
    ("queen", "queens", Kind::Person),
    ("sailor", "sailors", Kind::Person),
    ("painter", "painters", Kind::Person),
    ("miller", "millers", Kind::Person),
    ("doctor", "doctors", Kind::Person),
    ("shepherd", "shepherds", Kind::Person),
    ("neighbour", "neighbours", Kind::Person),
    ("girl", "girls", Kind::Person),
    ("boy", "boys", Kind::Person),
    ("woman", "women", Kind::Person),
    ("man", "men", Kind::Person),
    ("traveller", "travellers", Kind::Person),
    ("singer", "singers", Kind::Person),
    ("dog", "dogs", Kind::Animal),
    ("cat", "cats", Kind::Animal),
    ("horse", "horses", Kind::Animal),
    ("cow", "cows", Kind::Animal),
    ("sheep", "sheep", Kind::Animal),
    ("goat", "goats", Kind::Animal),
    ("hen", "hens", Kind::Animal),
    ("duck", "ducks", Kind::Animal),
    ("fox", "foxes", Kind::Animal),
    ("wolf", "wolves", Kind::Animal),
    ("bear", "bears", Kind::Animal),
    ("mouse", "mice", Kind::Animal),
    ("bird", "birds", Kind::Animal),
    ("owl", "owls", Kind::Animal),
    ("frog", "frogs", Kind::Animal),
    ("rabbit", "rabbits", Kind::Animal),
    ("donkey", "donkeys", Kind::Animal),
    ("basket", "baskets", Kind::Thing),
    ("book", "books", Kind::Thing),
    ("lamp", "lamps", Kind::Thing),
    ("hat", "hats", Kind::Thing),
    ("coat", "coats", Kind::Thing),
    ("rope", "ropes", Kind::Thing),
    ("key", "keys", Kind::Thing),
    ("bell", "bells", Kind::Thing),
    ("knife", "knives", Kind::Thing),
    ("cup", "cups", Kind::Thing),
    ("bowl", "bowls", Kind::Thing),
    ("chair", "chairs", Kind::Thing),
    ("blanket", "blankets", Kind::Thing),
    ("drum", "drums", Kind::Thing),
    ("letter", "letters", Kind::Thing),
    ("map", "maps", Kind::Thing),
    ("mirror", "mirrors", Kind::Thing),
    ("ring", "rings", Kind::Thing),
    ("shoe", "shoes", Kind::Thing),
    ("spoon", "spoons", Kind::Thing),
    ("stone", "stones", Kind::Thing),
    ("ladder", "ladders", Kind::Thing),
    ("kite", "kites", Kind::Thing),
    ("brush", "brushes", Kind::Thing),
    ("candle", "candles", Kind::Thing),
    ("coin", "coins", Kind::Thing),
    ("box", "boxes", Kind::Thing),
    ("flute", "flutes", Kind::Thing),
    ("hammer", "hammers", Kind::Thing),
    ("apple", "apples", Kind::Food),
    ("pear", "pears", Kind::Food),
    ("plum", "plums", Kind::Food),
    ("egg", "eggs", Kind::Food),
    ("cake", "cakes", Kind::Food),
    ("pie", "pies", Kind::Food),
    ("fish", "fish", Kind::Food),
    ("carrot", "carrots", Kind::Food),
    ("onion", "onions", Kind::Food),
    ("nut", "nuts", Kind::Food),
    ("berry", "berries", Kind::Food),
    ("loaf", "loaves", Kind::Food),
    ("market", "markets", Kind::Place),
    ("river", "rivers", Kind::Place),
    ("forest", "forests", Kind::Place),
    ("mill", "mills", Kind::Place),
    ("school", "schools", Kind::Place),
    ("garden", "gardens", Kind::Place),
    ("hill", "hills", Kind::Place),
    ("bridge", "bridges", Kind::Place),
    ("kitchen", "kitchens", Kind::Place),
    ("barn", "barns", Kind::Place),
    ("field", "fields", Kind::Place),
    ("lake", "lakes", Kind::Place),
    ("village", "villages", Kind::Place),
    ("tower", "towers", Kind::Place),
    ("road", "roads", Kind::Place),
    ("harbour", "harbours", Kind::Place),
    ("cave", "caves", Kind::Place),
    ("inn", "inns", Kind::Place),
];

/// An adjective and the kinds of noun it goes with.
pub(super) type Adjective = (&'static str, &'static [Kind]);

const BEINGS: &[Kind] = &[Kind::Person, Kind::Animal];
const GOODS: &[Kind] = &[Kind::Thing, Kind::Food];
const THINGS: &[Kind] = &[Kind::Thing];
const SEEN: &[Kind] = &[Kind::Animal, Kind::Thing, Kind::Food];
const ALL: &[Kind] = &[Kind::Person, Kind::Animal, Kind::Thing, Kind::Food, Kind::Place];

pub(super) const ADJECTIVES: &[Adjective] = &[
    ("old", ALL),
    ("small", ALL),
    ("big", ALL),
    ("new", &[Kind::Thing, Kind::Place]),
    ("quiet", &[Kind::Person, Kind::Animal, Kind::Place]),
    ("young", BEINGS),
    ("happy", BEINGS),
    ("sad", BEINGS),
    ("hungry", BEINGS),
    ("tired", BEINGS),
    ("clever", BEINGS),
    ("kind", &[Kind::Person]),
    ("brave", BEINGS),
    ("strong", BEINGS),
    ("red", SEEN),
    ("blue", THINGS),
    ("green", GOODS),
    ("white", SEEN),
    ("black", SEEN),
    ("yellow", GOODS),
    ("brown", SEEN),
    ("heavy", THINGS),
    ("round", GOODS),
    ("clean", THINGS),
    ("broken", THINGS),
    ("sweet", &[Kind::Food]),
    ("fresh", &[Kind::Food]),
    ("dark", &[Kind::Place]),
];

/// Complements that a verb asks for beside its subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// No complement.
    Alone,
    /// Somewhere to go.
    Towards,
    /// Somebody or something of these kinds.
    Object(&'static [Kind]),
    /// Something, and somebody who gets it.
    Give,
}

/// Base form, third person, past, frame.
pub(super) type Verb = (&'static str, &'static str, &'static str, Frame);

pub(super) const VERBS: &[Verb] = &[
    ("sleep", "sleeps", "slept", Frame::Alone),
    ("sing", "sings", "sang", Frame::Alone),
    ("laugh", "laughs", "laughed", Frame::Alone),
    ("cry", "cries", "cried", Frame::Alone),
    ("wait", "waits", "waited", Frame::Alone),
    ("work", "works", "worked", Frame::Alone),
    ("rest", "rests", "rested", Frame::Alone),
    ("dance", "dances", "danced", Frame::Alone),
    ("play", "plays", "played", Frame::Alone),
    ("swim", "swims", "swam", Frame::Alone),
    ("go", "goes", "went", Frame::Towards),
    ("walk", "walks", "walked", Frame::Towards),
    ("run", "runs", "ran", Frame::Towards),
    ("come", "comes", "came", Frame::Towards),
    ("ride", "rides", "rode", Frame::Towards),
    ("return", "returns", "returned", Frame::Towards),
    ("carry", "carries", "carried", Frame::Object(GOODS)),
    ("find", "finds", "found", Frame::Object(SEEN)),
    ("lose", "loses", "lost", Frame::Object(THINGS)),
    ("buy", "buys", "bought", Frame::Object(SEEN)),
    ("hide", "hides", "hid", Frame::Object(GOODS)),
    ("clean", "cleans", "cleaned", Frame::Object(THINGS)),
    ("break", "breaks", "broke", Frame::Object(THINGS)),
    ("make", "makes", "made", Frame::Object(THINGS)),
    ("want", "wants", "wanted", Frame::Object(SEEN)),
    ("take", "takes", "took", Frame::Object(GOODS)),
    ("hold", "holds", "held", Frame::Object(THINGS)),
    (
        "paint",
        "paints",
        "painted",
        Frame::Object(&[Kind::Animal, Kind::Place, Kind::Thing]),
    ),
    ("see", "sees", "saw", Frame::Object(ALL)),
    ("like", "likes", "liked", Frame::Object(ALL)),
    ("help", "helps", "helped", Frame::Object(BEINGS)),
    ("follow", "follows", "followed", Frame::Object(BEINGS)),
    ("hear", "hears", "heard", Frame::Object(BEINGS)),
    ("meet", "meets", "met", Frame::Object(&[Kind::Person])),
    ("call", "calls", "called", Frame::Object(BEINGS)),
    ("thank", "thanks", "thanked", Frame::Object(&[Kind::Person])),
    ("teach", "teaches", "taught", Frame::Object(&[Kind::Person])),
    ("love", "loves", "loved", Frame::Object(BEINGS)),
    ("fear", "fears", "feared", Frame::Object(BEINGS)),
    ("chase", "chases", "chased", Frame::Object(&[Kind::Animal])),
    ("feed", "feeds", "fed", Frame::Object(&[Kind::Animal])),
    ("eat", "eats", "ate", Frame::Object(&[Kind::Food])),
    ("cook", "cooks", "cooked", Frame::Object(&[Kind::Food])),
    ("cut", "cuts", "cut", Frame::Object(&[Kind::Food])),
    ("wash", "washes", "washed", Frame::Object(GOODS)),
    ("give", "gives", "gave", Frame::Give),
    ("show", "shows", "showed", Frame::Give),
    ("sell", "sells", "sold", Frame::Give),
    ("send", "sends", "sent", Frame::Give),
    ("bring", "brings", "brought", Frame::Give),
    ("lend", "lends", "lent", Frame::Give),
];

/// Times at which something happens, and whether each is in the past.
pub(super) const TIMES: &[(&str, bool)] = &[
    ("yesterday", true),
    ("last night", true),
    ("last summer", true),
    ("long ago", true),
    ("today", false),
    ("every day", false),
    ("in the morning", false),
    ("in the evening", false),
    ("in winter", false),
    ("at noon", false),
];

/// Prepositions for where something happens, relative to a place.
pub(super) const PREPOSITIONS: &[&str] = &["in", "near", "behind", "beside"];

/// Links that tie two clauses together.
pub(super) const LINKS: &[&str] = &["and", "but", "because", "while", "before"];

/// Counting words, from two.
pub(super) const COUNTS: &[&str] = &["two", "three", "four", "five", "six"];

/// People's names; every tongue keeps them as they are.
pub(super) const NAMES: &[&str] = &[
    "Anna", "Ben", "Clara", "David", "Emma", "Finn", "Greta", "Hugo", "Ida", "Jonas", "Kira", "Leo", "Mira", "Nils",
    "Olga", "Paul", "Rosa", "Sam", "Tilda", "Viktor",
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_noun_adjective_or_name_stands_twice() {
        let words: Vec<&str> = NOUNS
            .iter()
            .map(|noun| noun.0)
            .chain(ADJECTIVES.iter().map(|adjective| adjective.0))
            .chain(NAMES.iter().copied())
            .collect();
        assert_eq!(words.iter().collect::<BTreeSet<_>>().len(), words.len());
    }

    #[test]
    fn every_kind_has_nouns_and_an_adjective() {
        for kind in ALL {
            assert!(NOUNS.iter().filter(|noun| noun.2 == *kind).count() >= 10);
            assert!(ADJECTIVES.iter().any(|adjective| adjective.1.contains(kind)));
        }
    }
}
