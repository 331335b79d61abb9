//! Questions as the page asks them, and what their answers must have. That the numbers are those of `plan` is checked where the program
//! is there (`scripts/checks/planner.mjs`).

use serde_json::{Value, json};

use super::answer;
use super::published::rows;

const LLAMA: &str = r#"{"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "max_position_embeddings": 131072}"#;

fn asked(question: &Value) -> Value {
    serde_json::from_str(&answer(&question.to_string())).unwrap()
}

fn plan(more: &Value) -> Value {
    let mut question = json!({"ask": "plan", "config": LLAMA, "device": "H100 SXM"});
    let (Value::Object(question_keys), Value::Object(more)) = (&mut question, more) else {
        panic!("objects");
    };
    question_keys.extend(more.clone());
    asked(&question)
}

#[test]
fn the_menu_has_tools_devices_and_settings() {
    let menu = asked(&json!({"ask": "menu"}));
    let names = |list: &str| -> Vec<String> {
        let list = menu[list].as_array().unwrap();
        list.iter()
            .map(|one| one["name"].as_str().unwrap().to_owned())
            .collect()
    };
    assert!(names("tools").contains(&"axolotl".to_owned()));
    assert!(names("devices").contains(&"H100 SXM".to_owned()));
    for setting in menu["settings"].as_array().unwrap() {
        assert!(setting["usual"] != Value::Null, "{setting}");
    }
}

#[test]
fn the_form_and_a_file_that_says_the_same_have_one_plan() {
    let of_form = plan(
        &json!({"stack": "trl", "settings": {"rank": 32, "micro_batch": 4, "sequence_length": 2048,
        "gradient_checkpointing": "full", "precision": "nf4_double", "target_modules": "all-linear"}}),
    );
    assert!(of_form["error"].is_null(), "{of_form}");
    assert_eq!(of_form["plan"]["stack"], "trl");
    assert_eq!(of_form["plan"]["setting"]["micro_batch"], 4);
    let text = "model_name_or_path: m\nuse_peft: true\nlora_r: 32\nlora_target_modules: all-linear\nload_in_4bit: true\n\
                per_device_train_batch_size: 4\ngradient_accumulation_steps: 1\nmax_length: 2048\ngradient_checkpointing: true\n\
                use_bnb_nested_quant: true\n";
    let of_file = plan(&json!({"file": {"name": "sft.yaml", "text": text}}));
    assert!(of_file["error"].is_null(), "{of_file}");
    assert_eq!(of_file["plan"]["setting"]["micro_batch"], 4);
    assert_eq!(of_file["plan"]["verdict"]["fit"], "fits");
}

#[test]
fn time_and_money_come_with_bounds_and_say_what_is_missing() {
    let without = plan(&json!({"stack": "trl"}));
    assert!(
        without["cost"]["missing"].as_str().unwrap().contains("rows"),
        "{without}"
    );
    let cost = &plan(&json!({"stack": "trl", "rows": 1000, "epochs": 2.0, "devices": 2, "usd_per_h": 3.6}))["cost"];
    let seconds: Vec<f64> = serde_json::from_value(cost["seconds"].clone()).unwrap();
    let usd: Vec<f64> = serde_json::from_value(cost["usd"].clone()).unwrap();
    assert!(seconds[0] < seconds[1] && seconds[1] < seconds[2]);
    // 3.60 an hour is a tenth of a cent for each second of each of two devices.
    assert!((usd[1] / (seconds[1] * 2.0 * 0.001) - 1.0).abs() < 1e-12, "{cost}");
}

#[test]
fn a_model_of_more_parameters_than_32_bits_count_is_planned() {
    let gemma = r#"{"model_type": "gemma3_text", "hidden_size": 3840, "num_hidden_layers": 48, "num_attention_heads": 16,
        "num_key_value_heads": 8, "head_dim": 256, "intermediate_size": 15360, "vocab_size": 262208}"#;
    let found = plan(&json!({"stack": "trl", "config": gemma}));
    assert!(
        found["plan"]["parameters"].as_u64().unwrap() > 10_000_000_000,
        "{found}"
    );
}

#[test]
fn every_published_row_has_its_setting_and_the_nearest_come_with_a_plan() {
    let lines = include_str!("../../../docs/benchmarks/stacks.csv").lines().count();
    assert_eq!(rows().count(), lines - 1);
    for row in rows() {
        assert!(row.parameters > 0 && !row.origin.is_empty(), "{row:?}");
        assert!(["peft", "torchtune"].contains(&row.stack), "{row:?}");
    }
    let near = &plan(&json!({"stack": "peft", "device": "A100 80GB"}))["published"];
    assert!(near["far"].is_null(), "{near}");
    let near = near["rows"].as_array().unwrap();
    assert_eq!(near.len(), 5);
    assert!(near.iter().all(|row| row["stack"] == "peft"), "{near:?}");
}

#[test]
fn rows_that_are_far_in_one_thing_give_way_to_near_ones_and_are_called_far_where_there_are_none() {
    let published = |device: &str, settings: Value| {
        let found = plan(&json!({"stack": "peft", "device": device, "settings": settings}));
        found["published"].clone()
    };
    // By steps alone the rows of this stack would go first, which are of an A100 or of small models.
    let full = published("RTX A6000", json!({"method": "full", "precision": "bf16"}));
    assert!(full["far"].is_null(), "{full}");
    for row in full["rows"].as_array().unwrap() {
        assert_eq!(row["method"], "full", "{row}");
        assert!(
            ["RTX A6000", "RTX 4090"].contains(&row["device"].as_str().unwrap()),
            "{row}"
        );
    }
    let far = published("T4", json!({}));
    assert_eq!(far["rows"].as_array().unwrap().len(), 5, "{far}");
    assert!(far["far"].as_str().unwrap().contains("No measurement is near"), "{far}");
}

#[test]
fn several_devices_say_how_fast_they_are_beside_one() {
    let one = plan(&json!({"stack": "trl"}));
    assert!(one["scaling_text"].is_null(), "{one}");
    let two = plan(&json!({"stack": "trl", "devices": 2}));
    let text = two["scaling_text"].as_str().unwrap();
    assert!(text.starts_with("2 are ") && text.contains("efficiency"), "{text}");
}

fn wrong_number(name: &str, value: Value) -> Value {
    let mut question = json!({"ask": "plan", "config": LLAMA, "stack": "trl", "device": "L4"});
    question[name] = value;
    question
}

#[test]
fn wrong_questions_are_refused_with_what_to_do() {
    for (question, part) in [
        (json!({"ask": "plan"}), "config.json"),
        (json!({"ask": "plan", "config": "{"}), "no JSON"),
        (json!({"ask": "plan", "config": "{}", "stack": "trl"}), "hidden_size"),
        (json!({"ask": "plan", "config": LLAMA}), "no stack"),
        (json!({"ask": "plan", "config": LLAMA, "stack": "megatron"}), "megatron"),
        (
            json!({"ask": "plan", "config": LLAMA, "stack": "trl", "device": "TPU"}),
            "A100",
        ),
        (
            json!({"ask": "plan", "config": LLAMA, "stack": "trl", "settings": {"rank": 0}}),
            "rank",
        ),
        (
            json!({"ask": "plan", "config": LLAMA, "stack": "trl", "settings": {"colour": 1}}),
            "colour",
        ),
        (
            json!({"ask": "plan", "config": LLAMA, "stack": "trl", "sharing": "zero9"}),
            "zero9",
        ),
        (
            json!({"ask": "plan", "config": LLAMA, "file": {"name": "a.yaml", "text": "nothing: 1"}}),
            "a.yaml",
        ),
        (json!({"ask": "whatever"}), "asked wrongly"),
        (
            wrong_number("devices", json!(0)),
            "`devices` is 0; write a whole number from 1",
        ),
        (wrong_number("devices", json!(-1)), "`devices` is -1"),
        (wrong_number("devices", json!(1e9)), "from 1 to 65536"),
        (wrong_number("rows", json!(2.5)), "`rows` is 2.5"),
        (wrong_number("rows", json!(1e300)), "`rows` is 1e300"),
        (wrong_number("steps", json!(0)), "`steps` is 0"),
        (
            wrong_number("epochs", json!(-3)),
            "`epochs` is -3; write a number above 0",
        ),
        (wrong_number("usd_per_h", json!(-1)), "`-1` is not a price"),
        (wrong_number("usd_per_h", json!(0)), "`0` is not a price"),
        (wrong_number("usd_per_h", json!("2 euro")), "asked wrongly"),
    ] {
        let answer = asked(&question);
        let error = answer["error"]
            .as_str()
            .unwrap_or_else(|| panic!("{question}: {answer}"));
        assert!(error.contains(part), "{question}: {error}");
    }
}
