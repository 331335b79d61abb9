//! A row of published measurements.

use serde_json::Value;

/// Setting of a row, as it says it.
#[derive(Debug)]
pub(crate) struct Row {
    pub source: String,
    pub model: String,
    pub gpu: Option<String>,
    pub method: String,
    pub precision: Option<String>,
    pub quantization: Option<String>,
    pub micro_batch: u64,
    pub grad_accum: Option<u64>,
    pub sequence_length: u64,
    pub rank: Option<u64>,
    pub targets: Vec<String>,
    pub checkpointing: Option<bool>,
    pub optimizer: String,
    pub attention: Option<String>,
    pub packing: Option<bool>,
    pub num_gpus: u64,
    pub framework: String,
    pub has_autocast: Option<bool>,
    pub extra: Value,
    /// Samples are counted in place of tokens, and none is joined with others: their lengths differ.
    pub rows_differ: bool,
    pub speed_is_of_one_device: bool,
}

impl Row {
    /// # Errors
    /// What is missing, in words.
    pub(crate) fn read(row: &Value) -> Result<Self, String> {
        let text = |key: &str| row.get(key).and_then(Value::as_str).map(str::to_owned);
        let number = |key: &str| row.get(key).and_then(Value::as_u64);
        let extra = row.get("extra").cloned().unwrap_or(Value::Null);
        let extra_text = |key: &str| extra.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let basis = text("throughput_basis").unwrap_or_default();
        Ok(Self {
            source: text("source").unwrap_or_default(),
            model: text("model").ok_or("the row names no model")?,
            gpu: text("gpu"),
            method: text("method").ok_or("the row names no method")?,
            precision: text("precision"),
            quantization: text("quantization"),
            micro_batch: number("micro_batch").ok_or("the row has no micro-batch")?,
            grad_accum: number("grad_accum"),
            sequence_length: number("sequence_length").ok_or("the row has no sequence length")?,
            rank: number("rank"),
            targets: targets(row.get("targets")),
            checkpointing: row.get("checkpointing").and_then(Value::as_bool),
            optimizer: text("optimizer").unwrap_or_default().to_lowercase(),
            attention: text("attention"),
            packing: row.get("packing").and_then(Value::as_bool),
            num_gpus: number("num_gpus").unwrap_or(1),
            framework: extra_text("framework"),
            has_autocast: extra.get("amp").and_then(Value::as_bool),
            extra,
            rows_differ: basis.contains("samples/s") && row.get("packing").and_then(Value::as_bool) == Some(false),
            speed_is_of_one_device: basis.contains("per GPU"),
        })
    }

    /// A switch of `extra`.
    pub(crate) fn is_on(&self, key: &str) -> bool {
        self.extra.get(key).and_then(Value::as_bool).unwrap_or(false)
    }
}

fn targets(value: Option<&Value>) -> Vec<String> {
    match value {
        Some(Value::String(text)) => vec![text.clone()],
        Some(Value::Array(all)) => all.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        _ => Vec::new(),
    }
}
