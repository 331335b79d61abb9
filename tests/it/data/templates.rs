//! Chat templates and tokens as transformers makes them.

use peft_tune_core::recipe::{DataSettings, HeldOut, LossOn, TemplateTargets};
use peft_tune_engine::tokenizer::{ChatTemplate, GenerationPrompt, SpecialToken, SpecialTokens, Specials};
use serde_json::Value;

use super::{test_file, tokenizer};

fn golden(name: &str) -> Value {
    let text = std::fs::read(test_file("golden/chat").join(name)).unwrap();
    serde_json::from_slice(&text).unwrap()
}

fn template(name: &str, special: &SpecialTokens) -> ChatTemplate {
    let text = std::fs::read_to_string(test_file("golden/chat/templates").join(name)).unwrap();
    ChatTemplate::new(&[("default".to_owned(), text)], special, name).unwrap()
}

fn special(golden: &Value) -> SpecialTokens {
    let token = |key: &str| {
        let text = golden["special"][key].as_str().unwrap().to_owned();
        Some(SpecialToken { text, id: 0 })
    };
    SpecialTokens {
        bos: token("bos_token"),
        eos: token("eos_token"),
        ..SpecialTokens::default()
    }
}

#[test]
fn templates_render_as_in_transformers() {
    let golden = golden("rendered.json");
    let special = special(&golden);
    let tools = Value::Array(vec![golden["tool"].clone()]);
    let mut compared = 0;
    for case in golden["cases"].as_array().unwrap() {
        let name = case["template"].as_str().unwrap();
        let messages = golden["chats"][case["chat"].as_str().unwrap()].as_array().unwrap();
        let tools = (case["tools"] == true).then_some(&tools);
        let prompt = if case["prompt"] == true {
            GenerationPrompt::Add
        } else {
            GenerationPrompt::Omit
        };
        let conversation = template(name, &special).conversation(messages, tools).unwrap();
        let rendered = conversation.render(messages.len(), prompt);
        let result = &case["result"];
        if result.is_null() {
            assert!(rendered.is_err(), "transformers refuses {case}");
            continue;
        }
        let rendered = rendered.unwrap();
        assert_eq!(rendered.text, result["text"].as_str().unwrap(), "{name}, {case}");
        if let Some(generated) = rendered.generated {
            let spans: Vec<Value> = generated.iter().map(|span| vec![span.start, span.end].into()).collect();
            assert_eq!(Value::from(spans), result["spans"], "{name}, {case}");
        }
        compared += 1;
    }
    assert!(compared > 200, "{compared} cases");
}

#[test]
fn texts_become_the_tokens_of_transformers() {
    let golden = golden("tokenised.json");
    for (name, cases) in golden["texts"].as_object().unwrap() {
        let tokenizer = tokenizer(name);
        for case in cases.as_array().unwrap() {
            let encoded = tokenizer.encode(case["text"].as_str().unwrap(), Specials::Add).unwrap();
            assert_eq!(Value::from(encoded.ids), case["ids"], "{name}: {case}");
        }
    }
}

#[test]
fn marked_answers_are_the_mask_of_transformers() {
    let (rendered, tokenised) = (golden("rendered.json"), golden("tokenised.json"));
    let folder = tempfile::tempdir().unwrap();
    let tokenizer = tokenizer("tokenizer");
    for (name, expected) in tokenised["chats"].as_object().unwrap() {
        let path = folder.path().join(format!("{name}.jsonl"));
        let row = serde_json::json!({"messages": rendered["chats"][name]});
        std::fs::write(&path, format!("{row}\n{row}\n")).unwrap();
        let settings = DataSettings {
            train: vec![path].into(),
            held_out: HeldOut::Fraction(0.5),
            chat_template: Some(test_file("golden/chat/templates/marked.jinja")),
            ..Default::default()
        };
        let prepared = super::prepare(&settings, &tokenizer, 512).unwrap();
        let document = prepared.train().document(0).to_document();
        let mask: Vec<i64> = document.labels.iter().map(|label| i64::from(*label >= 0)).collect();
        assert_eq!(Value::from(document.input_ids), expected["ids"], "{name}");
        assert_eq!(Value::from(mask), expected["mask"], "{name}");
    }
}

#[test]
fn texts_and_ends_of_turns_are_what_axolotl_learns() {
    let golden = golden("axolotl.json");
    let folder = tempfile::tempdir().unwrap();
    let tokenizer = tokenizer("../../search_spaces/quickstart/base");
    let mut compared = 0;
    for (loss_on, name) in [(LossOn::Completions, "completions"), (LossOn::All, "all")] {
        let rows = golden[name].as_array().unwrap();
        for (number, (chat, expected)) in golden["chats"].as_array().unwrap().iter().zip(rows).enumerate() {
            let labels = expected["labels"].as_array().unwrap();
            if labels.iter().all(|label| *label == -100) {
                continue;
            }
            let path = folder.path().join(format!("{name}-{number}.jsonl"));
            let row = serde_json::json!({"messages": chat});
            std::fs::write(&path, format!("{row}\n{row}\n")).unwrap();
            let settings = DataSettings {
                train: vec![path].into(),
                held_out: HeldOut::Fraction(0.5),
                loss_on,
                template_targets: TemplateTargets::StopTokens,
                ..DataSettings::default()
            };
            let prepared = super::prepare(&settings, &tokenizer, 512).unwrap();
            let document = prepared.train().document(0).to_document();
            assert_eq!(Value::from(document.input_ids), expected["ids"], "{name}: {chat}");
            assert_eq!(&Value::from(document.labels), &expected["labels"], "{name}: {chat}");
            compared += 1;
        }
    }
    assert_eq!(compared, 11);
}
