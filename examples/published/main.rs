//! Predicts published measurements: `cargo run --release --example published -- ROWS.json [MODELS.json]`.
//!
//! Rows are read one by one; each gives a line of JSON with what its setting would need and how fast it would be. What a row
//! does not say is taken from the stack that its source used.

mod row;
mod setting;

use std::process::ExitCode;

use serde_json::{Value, json};

use peft_tune_core::predict;
use peft_tune_core::predict::stack::{self, Fit, ModelShape, StackDevice};

const GIB: f64 = (1u64 << 30) as f64;

fn main() -> ExitCode {
    let paths: Vec<String> = std::env::args().skip(1).collect();
    match lines(&paths) {
        Ok(lines) => {
            write(&lines);
            ExitCode::SUCCESS
        }
        Err(message) => {
            report(&message);
            ExitCode::from(2)
        }
    }
}

#[expect(clippy::print_stdout, reason = "an example's output")]
fn write(lines: &[Value]) {
    for line in lines {
        println!("{line}");
    }
}

#[expect(clippy::print_stderr, reason = "an example's output")]
fn report(message: &str) {
    eprintln!("error: {message}");
}

fn lines(paths: &[String]) -> Result<Vec<Value>, String> {
    let (rows, models) = match paths {
        [rows] => (rows, None),
        [rows, models] => (rows, Some(models)),
        _ => return Err("give ROWS.json, and MODELS.json where the rows' models have no config here".into()),
    };
    let rows_text = read(rows)?;
    let models = models.map(|path| read(path)).transpose()?.unwrap_or(json!({}));
    let Some(rows) = rows_text.as_array() else {
        return Err(format!("{rows} holds no list of rows"));
    };
    Ok(rows.iter().map(|row| line(row, &models)).collect())
}

fn read(path: &str) -> Result<Value, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("cannot read {path}: {error}"))?;
    serde_json::from_str(&text).map_err(|error| format!("{path} is no JSON: {error}"))
}

fn line(row: &Value, models: &Value) -> Value {
    let id = row.get("id").cloned().unwrap_or(Value::Null);
    match predicted(row, models) {
        Ok(mut fields) => {
            fields["id"] = id;
            fields
        }
        Err(why) => json!({
            "id": id, "peak_tensors_gib": null, "peak_process_gib": null, "tokens_per_s": null, "fits": null, "why": why,
        }),
    }
}

fn predicted(row: &Value, models: &Value) -> Result<Value, String> {
    let row = row::Row::read(row)?;
    let config = models
        .get(&row.model)
        .ok_or_else(|| format!("the dimensions of `{}` are not given", row.model))?;
    let shape = ModelShape::from_json(&row.model, config).map_err(|error| error.to_string())?;
    let setting = setting::of(&row)?;
    let sheet = row.gpu.as_deref().and_then(device);
    let device = sheet.map(|sheet| StackDevice { sheet });
    let prediction = stack::predict(&shape, &setting, device).map_err(|error| error.to_string())?;
    let of_each = if row.speed_is_of_one_device {
        setting.devices as f64
    } else {
        1.0
    };
    let fits = prediction.verdict.map(|verdict| match verdict.fit {
        Fit::Fits | Fit::Unproven => Value::Bool(true),
        Fit::Uncertain => Value::Null,
        Fit::DoesNot => Value::Bool(false),
    });
    let mut fields = json!({
        "id": null,
        "peak_tensors_gib": prediction.memory.tensors_bytes as f64 / GIB,
        "peak_process_gib": prediction.process_bytes as f64 / GIB,
        "tokens_per_s": prediction.tokens_per_s.map(|speed| speed / of_each),
        "fits": fits,
        "stack": setting.stack.name,
        "parameters": shape.parameters(),
        "device": device.map(|device| device.sheet.name),
        "weights": setting.weights,
    });
    if device.is_none() {
        fields["why"] = json!("no speed and no verdict: the row names no GPU that there is a data sheet of");
    } else if fields["fits"].is_null() {
        fields["why"] = json!("uncertain: less than the reserve would be left");
    }
    Ok(fields)
}

/// The data sheet of a GPU as rows name it, such as `A100 80GB SXM4` or `Tesla T4 16GB`.
fn device(name: &str) -> Option<&'static predict::DataSheet> {
    let mut words: Vec<&str> = name.split_whitespace().collect();
    loop {
        let known = predict::device(&words.join(" ")).ok();
        if known.is_some() || words.len() < 2 {
            return known.or_else(|| alias(name));
        }
        words.pop();
    }
}

fn alias(name: &str) -> Option<&'static predict::DataSheet> {
    let own = match name {
        name if name.starts_with("A10G") => "A10",
        name if name.starts_with("H100") => "H100 SXM",
        name if name.starts_with("A100") => "A100 80GB",
        _ => return None,
    };
    predict::device(own).ok()
}
