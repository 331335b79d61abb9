//! Spikes and divergences: what is found of them, and the return to a checkpoint at a lower rate.

use std::ops::RangeInclusive;
use std::path::Path;

use serde_json::Value;

use super::{Workplace, column, lines};
use crate::golden;

/// Reports of a training.
fn reports(place: &Workplace, output: &str) -> Vec<Value> {
    lines(&std::fs::read(place.path(output).join("spikes.jsonl")).unwrap())
}

fn strings(value: &Value) -> Vec<&str> {
    let all = value.as_array().unwrap().iter();
    all.map(|one| one.as_str().unwrap()).collect()
}

#[test]
fn a_rate_that_is_too_high_is_named_with_the_steps_that_led_there() {
    let place = Workplace::new(&[
        (
            "optimizer",
            "{kind: sgd, learning_rate: 1e30, momentum: 0.0, max_grad_norm: null}",
        ),
        ("schedule", "{kind: constant, warmup: 4}"),
    ]);
    place.refused(1, &["--output", "out", "--checkpoint-every", "1"]);
    let reports = reports(&place, "out");
    let [report] = &reports[..] else { panic!("{reports:?}") };
    assert_eq!(
        (&report["at_step"], &report["cause"], &report["answer"]),
        (&3.into(), &"rate".into(), &"ended".into()),
        "{report}"
    );
    let help = strings(&report["help"]);
    assert!(
        help[0].starts_with("lower `learning_rate` to 5.0e29 or less"),
        "{help:?}"
    );
    assert!(help.iter().any(|one| one.contains("max_grad_norm")), "{help:?}");
    let history = report["history"].as_array().unwrap();
    assert_eq!(history.len(), 3);
    // The first step has no rate, the second has a huge one, and the third has no loss.
    assert_eq!(history[0]["update"], 0.0);
    assert!(history[1]["update"].as_f64().unwrap() > 1e20 && history[1]["grad_norm"].as_f64().unwrap() > 0.0);
    assert_eq!(history[2]["loss"], Value::Null);
    // Rows of the step and of the one before, by their lines.
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 4);
    for row in rows {
        let location = row["location"].as_str().unwrap();
        assert!(location.contains("rows.jsonl line "), "{location}");
        assert_eq!((&row["stands_out"], &row["text"]), (&false.into(), &Value::Null));
        assert!(row["loss"].as_f64().unwrap() < 10.0);
    }
}

/// A training of 38 steps on four rows each, which are all alike but for those in some lines.
fn with_garbage(lines: RangeInclusive<usize>) -> Workplace {
    // Printable characters in no order.
    let mut state = 12_345_u32;
    let mut draw = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        char::from(33 + (state >> 24) as u8 % 94)
    };
    let garbage: String = (0..120).map(|_| draw()).collect();
    let row = |answer: &str| {
        serde_json::json!({"messages": [
            {"role": "user", "content": "Oskel: Sad kings like the tired painters in the morning."},
            {"role": "assistant", "content": answer},
        ]})
    };
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("search_spaces/quickstart/base");
    let model: &'static str = format!("{model:?}").leak();
    let place = Workplace::new(&[
        ("model", model),
        ("data", "{train: rows.jsonl, held_out: rows.jsonl}"),
        ("adapter", "{rank: 8, alpha: 16, target_modules: all-linear}"),
        (
            "batch",
            "{micro_batch: 4, gradient_accumulation: 1, sequence_length: 256}",
        ),
        ("optimizer", "{kind: adamw, learning_rate: 5e-3, max_grad_norm: 1.0}"),
        ("training", "{length: {steps: 38}, shuffle: false}"),
    ]);
    let rows: String = (1..=160)
        .map(|line| match lines.contains(&line) {
            true => row(&garbage),
            false => row("odim oluh ohofen luf usifen sep."),
        })
        .map(|row| format!("{row}\n"))
        .collect();
    std::fs::write(place.path("rows.jsonl"), rows).unwrap();
    place
}

#[test]
fn a_row_that_is_unlike_the_others_is_named() {
    let place = with_garbage(142..=142);
    for (output, show) in [("placed", &[][..]), ("shown", &["--show-rows"][..])] {
        // Whoever backs off does not do so for a row: it would spike at any rate.
        let asked = ["--output", output, "--on-spike", "back-off"];
        let told = place.train(&[&asked[..], show].concat());
        let spike = told.iter().find(|line| line["event"] == "spike").expect("it spikes");
        assert_eq!(
            (&spike["at_step"], &spike["cause"], &spike["answer"]),
            (&36.into(), &"data".into(), &"went_on".into()),
            "{spike}"
        );
        let rows = spike["rows"].as_array().unwrap();
        let stands_out = |row: &&Value| row["stands_out"] == true;
        assert_eq!((rows.len(), rows.iter().filter(stands_out).count()), (4, 1), "{spike}");
        assert!(rows[0]["location"].as_str().unwrap().ends_with("rows.jsonl line 142"));
        assert_eq!(rows[0]["stands_out"], true);
        match show {
            [] => assert_eq!(rows[0]["text"], Value::Null),
            _ => assert!(rows[0]["text"].as_str().unwrap().contains("Oskel"), "{spike}"),
        }
        assert_eq!(reports(&place, output)[0]["at_step"], 36);
    }
}

#[test]
fn values_that_spike_are_not_returned_to() {
    // Of the rows of step 36 none stands out from the others.
    let place = with_garbage(141..=144);
    let asked = ["--output", "out", "--on-spike", "back-off"];
    // One checkpoint is asked for, and its values are those that spike.
    let told = place.train(&[&asked[..], &["--checkpoint-every", "1", "--keep-checkpoints", "1"]].concat());
    let back_offs = told.last().unwrap()["back_offs"].as_array().unwrap();
    assert!(!back_offs.is_empty());
    for back_off in back_offs {
        assert_eq!(
            (&back_off["at_step"], &back_off["to_step"]),
            (&36.into(), &34.into()),
            "{back_off}"
        );
    }
}

#[test]
fn numbers_beyond_fp16_are_named_an_overflow() {
    let source = golden::folder("ref_llama/model");
    let place = Workplace::new(&[]);
    std::fs::create_dir(place.path("model")).unwrap();
    std::fs::copy(source.join("config.json"), place.path("model/config.json")).unwrap();
    // The same function in float32: what is 2^17 times as large in between ends beyond 65,504.
    let mut tensors = golden::tensors(&source.join("model.safetensors"));
    let factor = f64::from(1 << 17);
    for (name, tensor) in &mut tensors {
        let scaled = match name {
            name if name.contains("up_proj") => tensor.affine(factor, 0.0),
            name if name.contains("down_proj") => tensor.affine(1.0 / factor, 0.0),
            _ => continue,
        };
        *tensor = scaled.unwrap();
    }
    candle_core::safetensors::save(&tensors, place.path("model/model.safetensors")).unwrap();
    let model: &'static str = format!("{:?}", place.path("model")).leak();
    place.write_recipe(&[("model", model), ("precision", "fp16")]);
    let message = place.refused(1, &["--output", "out"]);
    assert!(message.contains("cause: overflow"), "{message}");
    assert!(message.contains("train with `precision: bf16`"), "{message}");
    let report = &reports(&place, "out")[0];
    assert_eq!(report["cause"], "overflow", "{report}");
    assert!(strings(&report["evidence"])[0].starts_with("in float32 the same batch has a loss of "));
}

/// A decay by which values grow 19 times as large in each step, and a sixteenth of which makes them smaller.
const WILD: &str = "{kind: adamw, learning_rate: 0.02, weight_decay: 1000, max_grad_norm: null}";

/// Checks of a training that backed off from [`WILD`] and ended.
fn backed_off(place: &Workplace) {
    let asked = ["--output", "out", "--on-spike", "back-off"];
    let many = ["--checkpoint-every", "1", "--keep-checkpoints", "30"];
    let told = place.train(&[asked, many].concat());
    let end = told.last().unwrap();
    assert_eq!(
        (&end["ending"], &end["steps"]),
        (&"finished".into(), &20.into()),
        "{end}"
    );
    assert!(end["training_loss"].as_f64().unwrap().is_finite());
    let back_offs = end["back_offs"].as_array().unwrap();
    assert!(!back_offs.is_empty());
    for (back_off, halved) in back_offs.iter().zip(1..) {
        let rate = back_off["learning_rate"].as_f64().unwrap();
        assert!((rate - 0.02 / 2_f64.powi(halved)).abs() < 1e-12, "{end}");
        assert!(back_off["to_step"].as_u64().unwrap() < back_off["at_step"].as_u64().unwrap());
    }
    // The rate of the last step is that of the last return, and each return is told, kept and written.
    let last = column(&told, "step", "learning_rate").pop();
    assert_eq!(last, back_offs.last().unwrap()["learning_rate"].as_f64());
    let reports = reports(place, "out");
    let answers = reports.iter().map(|report| &report["answer"]["backed_off"]);
    assert!(answers.filter(|answer| !answer.is_null()).eq(back_offs), "{reports:?}");
    assert_eq!(reports[0]["cause"], "rate");
    for report in &reports {
        // The values behind the step before give the same loss again.
        let is_loss = report["what"].as_str().unwrap().starts_with("the training loss");
        if let Some(to_step) = report["answer"]["backed_off"]["to_step"].as_u64().filter(|_| is_loss) {
            assert!(to_step + 2 <= report["at_step"].as_u64().unwrap(), "{report}");
        }
    }
    let result = golden::json(&place.path("out/result.json"));
    assert_eq!(result["back_offs"], end["back_offs"]);
}

#[test]
fn backing_off_ends_with_a_loss_and_the_record() {
    let place = Workplace::new(&[("optimizer", WILD)]);
    backed_off(&place);
    // Without it the same training ends at the first of them.
    let message = place.refused(1, &["--output", "plain"]);
    assert!(message.contains("`train --on-spike back-off`"), "{message}");
}

#[cfg(target_os = "linux")]
#[test]
fn ranks_back_off_together() {
    let batch = "{micro_batch: 1, gradient_accumulation: 1, devices: 2, sequence_length: 256}";
    let place = Workplace::new(&[("optimizer", WILD), ("batch", batch)]);
    backed_off(&place);
}

#[test]
fn a_resumed_training_keeps_the_rate_that_it_came_to() {
    let place = Workplace::new(&[("optimizer", WILD)]);
    backed_off(&place);
    let rates = |output: &str| {
        let told = place.train(&["--output", output, "--resume", "--on-spike", "back-off"]);
        column(&told, "step", "learning_rate")
    };
    std::fs::remove_file(place.path("out/result.json")).unwrap();
    std::fs::remove_dir_all(place.path("out/checkpoints/step-00000020")).unwrap();
    let end = golden::json(&place.path("out/checkpoints/step-00000019/state.json"));
    let back_offs = end["progress"]["back_offs"].as_array().unwrap();
    assert_eq!(
        rates("out"),
        [back_offs.last().unwrap()["learning_rate"].as_f64().unwrap()]
    );
}
