//! Tokens of a chat that are learnt: each template has a twin that says it itself, with `{% generation %}`.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{prepare, tokenizer};
use peft_tune_core::recipe::DataSettings;
use peft_tune_engine::data::Document;

/// A template without marks, by what it does that others do not; where an answer begins and ends stands as `⟪` and `⟫`, which
/// are left out of one twin and are the marks of the other.
const TEMPLATES: [(&str, &str); 12] = [
    (
        "the end of a turn behind each",
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}⟪{{ m.content }}<|im_end|>\n⟫{% else %}\
         {{ m.content }}<|im_end|>\n{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    ),
    (
        "it opens an answer whether it is asked or not",
        "{% for m in messages %}[{{ m.role }}]{% if m.role == 'assistant' %}⟪{{ m.content }}<|im_end|>⟫{% else %}\
         {{ m.content }}<|im_end|>{% endif %}{% endfor %}[assistant][plan]",
    ),
    (
        "it trims",
        "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.role }}\n\n{% if m.role == 'assistant' %}⟪{{ m.content | trim }}\
         <|im_end|>⟫{% else %}{{ m.content | trim }}<|im_end|>{% endif %}{% endfor %}\
         {% if add_generation_prompt %}<|im_start|>assistant\n\n{% endif %}",
    ),
    (
        "the last answer ends otherwise",
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}⟪{{ m.content }}\
         {{ '<|im_end|>' if loop.last else '<|endoftext|>' }}⟫{% else %}{{ m.content }}<|im_end|>{% endif %}{% endfor %}\
         {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    ),
    (
        "the system's text moves to the last question",
        "{% for m in messages %}{% if m.role == 'user' %}[Q]{% if loop.last or loop.index0 == messages | length - 2 %}\
         {{ messages[0].content if messages[0].role == 'system' }}\n{% endif %}{{ m.content }}[/Q]\
         {% elif m.role == 'assistant' %}⟪{{ m.content }}<|im_end|>⟫{% endif %}{% endfor %}",
    ),
    (
        "reasoning is dropped once a question follows",
        "{% set ns = namespace(last=-1) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}\
         {% endfor %}{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}⟪{% if loop.index0 > ns.last %}\
         (plan){{ m.reasoning_content }}(/plan){% endif %}{{ m.content }}<|im_end|>\n⟫{% else %}{{ m.content }}<|im_end|>\n\
         {% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    ),
    (
        "reasoning is opened by the prompt",
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}{% if loop.last %}(plan)⟪\
         {{ m.reasoning_content }}(/plan)\n{{ m.content }}<|im_end|>⟫{% else %}⟪{{ m.content }}<|im_end|>⟫{% endif %}{% else %}\
         {{ m.content }}<|im_end|>{% endif %}\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n(plan){% endif %}",
    ),
    (
        "the end of the document behind whatever it renders",
        "{% for m in messages %}<|{{ m.role }}|>\n{% if m.role == 'assistant' %}⟪{{ m.content }}<|endoftext|>\n\
         {% if loop.last and not add_generation_prompt %}{{ eos_token }}{% endif %}⟫{% else %}{{ m.content }}<|endoftext|>\n\
         {% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% elif messages[-1].role != 'assistant' %}\
         {{ eos_token }}{% endif %}",
    ),
    (
        "questions and answers without a prompt of their own",
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]\
         {% elif m.role == 'assistant' %}⟪ {{ m.content }}{{ eos_token }}⟫{% else %}(({{ m.content }}))\n{% endif %}{% endfor %}",
    ),
    (
        "the system's text stands in front and is said again",
        "{% if messages[0].role == 'system' %}{{ messages[0].content }}\n{% endif %}{% for m in messages %}\
         {% if m.role != 'system' %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}⟪{{ m.content }}<|im_end|>⟫\
         {% else %}{{ m.content }}{% if messages[0].role == 'system' %} ({{ messages[0].content }}){% endif %}<|im_end|>{% endif %}\
         {% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    ),
    (
        "turns are numbered by how many there are",
        "{% for m in messages %}{{ messages | length }}/{{ loop.index }}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}\
         ⟪{{ m.content }}<|im_end|>⟫{% else %}{{ m.content }}<|im_end|>{% endif %}{% endfor %}\
         {% if add_generation_prompt %}{{ messages | length }}/{{ messages | length + 1 }}<|im_start|>assistant\n{% endif %}",
    ),
    (
        "a reminder behind the last question",
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}⟪{{ m.content }}<|im_end|>⟫{% else %}\
         {{ m.content }}{% if loop.index0 == messages | length - 2 or loop.last %} /brief{% endif %}<|im_end|>{% endif %}\
         {% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    ),
];

/// Short words, most of which templates have too, so that answers stand in questions.
fn text() -> impl Strategy<Value = String> {
    let word = prop::sample::select(vec![
        "a",
        "yes",
        "red",
        "user",
        "assistant",
        "end",
        "plan",
        "42",
        "[",
        "/",
    ]);
    let padding = prop::sample::select(vec!["", " ", "\n"]);
    (prop::collection::vec(word, 1..4), padding.clone(), padding)
        .prop_map(|(words, before, behind)| format!("{before}{}{behind}", words.join(" ")))
}

fn chat() -> impl Strategy<Value = Vec<Value>> {
    let turn = (text(), text(), text(), any::<bool>());
    (prop::option::of(text()), prop::collection::vec(turn, 1..4)).prop_map(|(system, turns)| {
        let mut messages: Vec<Value> = system
            .into_iter()
            .map(|text| json!({"role": "system", "content": text}))
            .collect();
        for (question, reasoning, answer, is_learnt) in turns {
            messages.push(json!({"role": "user", "content": question}));
            let mut message = json!({"role": "assistant", "content": answer, "reasoning_content": reasoning});
            if !is_learnt {
                message["train"] = false.into();
            }
            messages.push(message);
        }
        messages
    })
}

/// The rows as they are learnt; `None` where nothing is left of them.
fn learnt(rows: &[Vec<Value>], template: &str) -> Option<Vec<Document>> {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let lines: Vec<String> = rows
        .iter()
        .map(|messages| json!({"messages": messages}).to_string())
        .collect();
    std::fs::write(path("rows.jsonl"), lines.join("\n")).unwrap();
    std::fs::write(path("t.jinja"), template).unwrap();
    let settings = DataSettings {
        train: vec![path("rows.jsonl")].into(),
        held_out: peft_tune_core::recipe::HeldOut::File(path("rows.jsonl")),
        chat_template: Some(path("t.jinja")),
        ..DataSettings::default()
    };
    let data = prepare(&settings, &tokenizer("tokenizer"), 4096).ok()?;
    let documents = (0..data.train().len()).map(|index| data.train().document(index).to_document());
    Some(documents.collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Checks that what is learnt without marks is what the template's author would have marked, whatever words the
    /// chat has; a text of users or systems never is.
    #[test]
    fn answers_are_those_that_the_author_would_mark(chats in prop::collection::vec(chat(), 1..4)) {
        for (habit, template) in TEMPLATES {
            let plain = template.replace(['⟪', '⟫'], "");
            let marked = template.replace('⟪', "{% generation %}").replace('⟫', "{% endgeneration %}");
            let (found, expected) = (learnt(&chats, &plain), learnt(&chats, &marked));
            prop_assert_eq!(found, expected, "{}", habit);
        }
    }
}
