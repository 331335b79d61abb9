//! The plots of the stories: sentences with open slots, and questions that the told story answers.
//!
//! A slot stands in braces. `{A}`, `{B}`, `{C}` are people, `{he:A}` and `{his:A}` their pronouns; `{thing}`, `{food}`,
//! `{animal}`, `{place}`, `{town}`, `{job}`, `{tool}` are nouns of the story's choice, some with a quality; `{a:thing}`
//! is the noun with its article. `{^...}` begins with a capital. All text here was written for this project.

/// One kind of story.
pub(super) struct Plot {
    /// Sentences in order, each with the ways it may be told; an empty way leaves it out.
    pub steps: &'static [&'static [&'static str]],
    /// Questions and their answers.
    pub questions: &'static [(&'static str, &'static str)],
}

pub(super) const PLOTS: &[Plot] = &[
    Plot {
        steps: &[
            &[
                "One morning {A} went to the {place}.",
                "{A} walked to the {place} early in the morning.",
                "It was a cold day, but {A} went to the {place}.",
            ],
            &[
                "There {he:A} met {B}.",
                "{B} was there too.",
                "{B} was waiting for {him:A} there.",
            ],
            &[
                "{B} had {a:thing}.",
                "{B} was carrying {a:thing}.",
                "In {his:B} hands {B} held {a:thing}.",
            ],
            &[
                "{A} wanted the {thing}.",
                "{A} looked at the {thing} for a long time.",
                "\"What a fine {thing}!\" said {A}.",
            ],
            &[
                "{A} gave {B} {a:food}, and {B} gave {A} the {thing}.",
                "So {A} gave {his:A} {food} to {B} and got the {thing} for it.",
            ],
            &[
                "Then {A} went home with the {thing}.",
                "{A} carried the {thing} home.",
                "Both of them were happy.",
            ],
        ],
        questions: &[
            ("Where did {A} go?", "{A} went to the {place}."),
            ("Who had the {thing} first?", "{B} had the {thing} first."),
            ("Who has the {thing} now?", "{A} has the {thing} now."),
            ("What did {A} give to {B}?", "{A} gave {B} {a:food}."),
        ],
    },
    Plot {
        steps: &[
            &[
                "{A} had {a:thing}, but one day {he:A} lost it.",
                "One day {A} lost {his:A} {thing}.",
                "{A} could not find {his:A} {thing}.",
            ],
            &[
                "{^he:A} looked in the {place}, but it was not there.",
                "First {he:A} looked in the {place}.",
                "It was not in the {place}.",
            ],
            &[
                "{^he:A} asked {B}, but {B} had not seen it.",
                "\"Have you seen my {thing}?\" {he:A} asked {B}. \"No,\" said {B}.",
                "",
            ],
            &[
                "Then {C} came from the {town} with {a:animal}.",
                "In the evening {C} came back from the {town} with {a:animal}.",
            ],
            &[
                "The {animal} had found the {thing} near the {town}.",
                "\"My {animal} found this near the {town},\" said {C}.",
            ],
            &[
                "{A} thanked {C} and gave the {animal} {a:food}.",
                "{A} was so happy that {he:A} gave the {animal} {a:food}.",
            ],
        ],
        questions: &[
            ("What did {A} lose?", "{A} lost {a:thing}."),
            ("Who found the {thing}?", "The {animal} found the {thing}."),
            ("Where was the {thing}?", "The {thing} was near the {town}."),
            ("Where did {A} look first?", "{A} looked in the {place} first."),
        ],
    },
    Plot {
        steps: &[
            &[
                "The {job} had {a:animal}.",
                "There was {a:job} who had {a:animal}.",
                "Near the {place} lived {a:job} with {his:A} {animal}.",
            ],
            &[
                "Every day the {animal} slept in the {place}.",
                "The {animal} liked to sleep in the {place}.",
            ],
            &[
                "One night the {animal} ran away to the {town}.",
                "One day the {animal} was not there, because it had run to the {town}.",
            ],
            &[
                "The {job} was sad and called {A}.",
                "\"Please help me,\" the {job} said to {A}.",
            ],
            &[
                "{A} took {a:food} and went to the {town}.",
                "{A} went to the {town} with {a:food}.",
            ],
            &[
                "The {animal} was hungry, so it followed {A} home.",
                "When the {animal} saw the {food}, it came at once, and {A} brought it home.",
            ],
        ],
        questions: &[
            ("Who had {a:animal}?", "The {job} had {a:animal}."),
            ("Where did the {animal} run?", "The {animal} ran to the {town}."),
            ("Who helped the {job}?", "{A} helped the {job}."),
            ("What did {A} take to the {town}?", "{A} took {a:food} to the {town}."),
        ],
    },
    Plot {
        steps: &[
            &[
                "{A} and {B} wanted to make {a:thing}.",
                "{A} wanted to make {a:thing} for {B}.",
                "One winter {A} and {B} made {a:thing}.",
            ],
            &[
                "They worked in the {place} every day.",
                "They worked in the {place} from morning to evening.",
            ],
            &["But {A} had no {tool}.", "They needed {a:tool}, but they had none."],
            &[
                "{C} lent them {a:tool}.",
                "So they asked {C}, and {C} brought them {a:tool} from the {town}.",
            ],
            &["After three days the {thing} was ready.", "Soon the {thing} was ready."],
            &[
                "They sold it at the {town} for ten coins.",
                "They showed it to everybody in the {town}.",
            ],
        ],
        questions: &[
            ("What did they make?", "They made {a:thing}."),
            ("Where did they work?", "They worked in the {place}."),
            ("Who had {a:tool}?", "{C} had {a:tool}."),
            ("What did they need?", "They needed {a:tool}."),
        ],
    },
    Plot {
        steps: &[
            &[
                "{A} was hungry.",
                "It was noon, and {A} was hungry.",
                "{A} had not eaten all day.",
            ],
            &[
                "{^he:A} went to the {place} and found {a:food}.",
                "In the {place} {he:A} found {a:food}.",
            ],
            &[
                "Then {B} came by with {his:B} {animal}.",
                "A little later {B} came with {a:animal}.",
            ],
            &["{B} was hungry too.", "\"I am hungry too,\" said {B}."],
            &[
                "{A} cut the {food} in two and gave half of it to {B}.",
                "So {A} gave {B} half of the {food}.",
            ],
            &[
                "The {animal} got nothing, but it did not mind.",
                "The {animal} got the rest.",
                "After that they were friends.",
            ],
        ],
        questions: &[
            ("Why did {A} go to the {place}?", "{A} was hungry."),
            ("What did {A} find?", "{A} found {a:food}."),
            ("Who came by?", "{B} came by."),
            ("What did {B} have?", "{B} had {a:animal}."),
        ],
    },
    Plot {
        steps: &[
            &[
                "It was raining hard.",
                "A storm came over the {town}.",
                "The wind was strong that night.",
            ],
            &[
                "{A} was on the road to the {town} with {a:animal}.",
                "{A} was riding to the {town}, and {his:A} {animal} was tired.",
            ],
            &[
                "They saw a light in the {place}.",
                "Near the {place} there was a light.",
            ],
            &[
                "{B} lived there.",
                "It was the house of {B}, {a:job}.",
                "There lived {a:job} called {B}.",
            ],
            &[
                "\"Come in,\" said {B}, and gave {A} {a:food}.",
                "{B} gave {A} {a:food} and a blanket.",
            ],
            &[
                "In the morning the sun was out, and {A} went on to the {town}.",
                "The next day {A} gave {B} {a:thing} and went on.",
            ],
        ],
        questions: &[
            ("Where was {A} going?", "{A} was going to the {town}."),
            ("Who lived near the {place}?", "{B} lived there."),
            ("What did {B} give to {A}?", "{B} gave {A} {a:food}."),
            ("Who was tired?", "The {animal} was tired."),
        ],
    },
    Plot {
        steps: &[
            &[
                "Today was the birthday of {A}.",
                "{A} was ten years old today.",
                "It was a happy day for {A}.",
            ],
            &["{B} brought {a:thing}.", "From {B} {he:A} got {a:thing}."],
            &["{C} brought {a:food}.", "{C} had cooked all day and brought {a:food}."],
            &[
                "They all went to the {place} to sing and dance.",
                "Then they played in the {place}.",
            ],
            &["{A} liked the {thing} best.", "\"I like the {thing} best,\" said {A}."],
            &[
                "When it was dark, everybody went home.",
                "At night they were tired and went home.",
            ],
        ],
        questions: &[
            ("What did {B} bring?", "{B} brought {a:thing}."),
            ("Who brought {a:food}?", "{C} brought {a:food}."),
            ("Where did they go?", "They went to the {place}."),
            ("What did {A} like best?", "{A} liked the {thing} best."),
        ],
    },
    Plot {
        steps: &[
            &[
                "The {job} sent {A} to the {town} with {a:thing}.",
                "{A} had to bring {a:thing} to the {town} for the {job}.",
            ],
            &[
                "On the way {he:A} came to the {place}.",
                "First {he:A} walked to the {place}.",
            ],
            &[
                "{^a:animal} stood there and would not let {him:A} go on.",
                "There {he:A} saw {a:animal}, and {he:A} was afraid.",
            ],
            &["{^he:A} gave it {a:food}.", "But {A} was clever and gave it {a:food}."],
            &[
                "The {animal} ate the {food} and went away.",
                "While the {animal} was eating, {A} ran on.",
            ],
            &[
                "In the evening {A} gave the {thing} to {B}.",
                "So the {thing} came to {B} that evening.",
            ],
        ],
        questions: &[
            ("Who sent {A} to the {town}?", "The {job} sent {A}."),
            ("What did {A} meet on the way?", "{A} met {a:animal}."),
            ("What did the {animal} eat?", "The {animal} ate {a:food}."),
            ("Who got the {thing}?", "{B} got the {thing}."),
        ],
    },
    Plot {
        steps: &[
            &[
                "{A} and {B} ran from the {place} to the {town}.",
                "One summer {A} and {B} wanted to know who was faster.",
            ],
            &[
                "{A} was strong, but {B} was clever.",
                "Everybody thought that {A} would win.",
            ],
            &[
                "{A} stopped to eat {a:food}.",
                "On the way {A} saw {a:animal} and stopped.",
            ],
            &["{B} did not stop.", "But {B} ran on and on."],
            &["{B} was first at the {town}.", "So {B} came to the {town} first."],
            &["{C} gave {B} {a:thing}.", "{B} won {a:thing}, and {C} laughed."],
        ],
        questions: &[
            ("Who was first?", "{B} was first."),
            ("Who stopped on the way?", "{A} stopped."),
            ("What did {B} win?", "{B} won {a:thing}."),
            ("Who was clever?", "{B} was clever."),
        ],
    },
    Plot {
        steps: &[
            &[
                "{A} was {a:job} in the {town}.",
                "In the {town} there was {a:job} called {A}.",
            ],
            &[
                "{^he:A} wrote a letter to {B}.",
                "One evening {he:A} sent a letter to {B}.",
            ],
            &[
                "\"Come to the {place} and bring {a:thing},\" it said.",
                "In it stood: \"Please bring {a:thing} to the {place}.\"",
            ],
            &[
                "{B} did not have {a:thing}, so {he:B} bought one from {C}.",
                "{B} got the {thing} from {C}.",
            ],
            &[
                "They met at the {place} the next day.",
                "The next day they met near the {place}.",
            ],
            &[
                "{A} showed {B} {a:animal} under a tree.",
                "There {A} and {B} saw {a:animal}.",
            ],
        ],
        questions: &[
            ("Who wrote the letter?", "{A} wrote the letter."),
            ("Where did they meet?", "They met near the {place}."),
            ("Who sold the {thing}?", "{C} sold the {thing}."),
            ("What did they see?", "They saw {a:animal}."),
        ],
    },
];
