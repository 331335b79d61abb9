//! What was measured as rows of the database.

use super::forms::FormPoints;
use crate::store::{InferenceRecord, MeasuredForm, RequestRecord};
use peft_tune_core::recipe::Precision;
use peft_tune_engine::profile::Latency;

/// The rows of one call.
pub(super) struct Records {
    pub points: Vec<InferenceRecord>,
    pub requests: Vec<RequestRecord>,
}

impl Records {
    pub(super) fn new(model: &str, precision: Precision, measured: &[FormPoints]) -> Self {
        let precision = match serde_json::to_value(precision) {
            Ok(serde_json::Value::String(name)) => name,
            _ => String::new(),
        };
        let times = |latency: Latency| [latency.p50_s, latency.p95_s, latency.p99_s];
        let of = |form: &FormPoints, batch: usize| MeasuredForm {
            model: model.to_owned(),
            precision: precision.clone(),
            form: form.form.to_owned(),
            rank: form.rank.map(|rank| rank as u64),
            adapters: form.adapters as u64,
            batch: batch as u64,
        };
        let of = &of;
        let points = measured.iter().flat_map(|form| {
            form.points.iter().map(move |point| InferenceRecord {
                of: of(form, point.batch),
                prompt_tokens: point.prompt_tokens as u64,
                new_tokens: point.new_tokens as u64,
                first_token_s: times(point.first_token),
                token_s: times(point.token),
                prefill_tokens_per_s: point.prefill_tokens_per_s,
                decode_tokens_per_s: point.decode_tokens_per_s,
                peak_memory_bytes: point.peak_bytes,
                cache_bytes: point.cache_bytes,
            })
        });
        let requests = measured.iter().flat_map(|form| {
            form.requests.iter().map(move |point| RequestRecord {
                of: of(form, point.batch),
                requests: point.requests as u64,
                prompt_tokens: point.prompt_tokens,
                new_tokens: point.new_tokens,
                first_token_s: times(point.first_token),
                request_s: times(point.request),
                tokens_per_s: point.tokens_per_s,
                requests_per_s: point.requests_per_s,
                text_share: point.text_share,
                peak_memory_bytes: point.peak_bytes,
            })
        });
        Self {
            points: points.collect(),
            requests: requests.collect(),
        }
    }
}
