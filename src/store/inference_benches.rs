//! Rows of `infer-bench`: how fast a model answers.

use sqlx::SqliteConnection;

use super::row::{finite_or_0, to_i64};
use super::{MachineRecord, Store, StoreError};

/// The model of a measured point, and how many sequences it answers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MeasuredForm {
    pub model: String,
    pub precision: String,
    /// Form of the weights: `base`, `adapter`, `merged` or `together`.
    pub form: String,
    pub rank: Option<u64>,
    pub adapters: u64,
    pub batch: u64,
}

/// One measured point; see the table `infer_bench`. Times are in seconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct InferenceRecord {
    pub of: MeasuredForm,
    pub prompt_tokens: u64,
    pub new_tokens: u64,
    /// Seconds to the first token: median, 95th and 99th percentile.
    pub first_token_s: [f64; 3],
    /// Seconds between tokens: median, 95th and 99th percentile.
    pub token_s: [f64; 3],
    pub prefill_tokens_per_s: f64,
    pub decode_tokens_per_s: f64,
    pub peak_memory_bytes: u64,
    pub cache_bytes: u64,
}

/// One measured point from text to text; see the table `infer_requests`. Times are in seconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RequestRecord {
    pub of: MeasuredForm,
    pub requests: u64,
    /// Mean tokens of a prompt.
    pub prompt_tokens: f64,
    /// Mean tokens of an answer.
    pub new_tokens: f64,
    /// Seconds to the first token: median, 95th and 99th percentile.
    pub first_token_s: [f64; 3],
    /// Seconds of a whole request: median, 95th and 99th percentile.
    pub request_s: [f64; 3],
    pub tokens_per_s: f64,
    pub requests_per_s: f64,
    pub text_share: f64,
    pub peak_memory_bytes: u64,
}

/// The call that measured points, and the machine that it ran on.
#[derive(Clone, Copy)]
struct BenchCall {
    bench: i64,
    machine: Option<i64>,
}

/// Measurements of how fast models answer.
#[derive(Clone, Copy, Debug)]
pub struct InferenceBenches<'a> {
    pub(super) store: &'a Store,
}

impl InferenceBenches<'_> {
    /// Stores the points of one call and returns its number.
    ///
    /// # Errors
    /// Where writing fails; nothing is stored then.
    pub async fn record(
        self,
        machine: Option<&MachineRecord>,
        records: &[InferenceRecord],
        requests: &[RequestRecord],
    ) -> Result<i64, StoreError> {
        let mut transaction = self.store.begin().await?;
        let machine = match machine {
            Some(machine) => Some(self.store.facts().machine_id(&mut transaction, machine).await?),
            None => None,
        };
        let last = "select max(coalesce((select max(bench) from infer_bench), 0), coalesce((select max(bench) from infer_requests), 0)) + 1";
        let bench: i64 = sqlx::query_scalar(last)
            .fetch_one(&mut *transaction)
            .await
            .map_err(|error| self.store.error(error))?;
        let call = BenchCall { bench, machine };
        for record in records {
            self.insert_answers(&mut transaction, call, record).await?;
        }
        for record in requests {
            self.insert_requests(&mut transaction, call, record).await?;
        }
        self.store.commit(transaction).await?;
        Ok(bench)
    }

    /// Writes a point of sequences of one length.
    async fn insert_answers(
        self,
        connection: &mut SqliteConnection,
        call: BenchCall,
        record: &InferenceRecord,
    ) -> Result<(), StoreError> {
        sqlx::query(
            "insert into infer_bench (bench, machine_id, model, precision, form, rank, adapters, batch, prompt_tokens,
                 new_tokens, first_token_p50_s, first_token_p95_s, first_token_p99_s, token_p50_s, token_p95_s,
                 token_p99_s, prefill_tokens_per_s, decode_tokens_per_s, peak_memory_bytes, cache_bytes)
             values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        )
        .bind(call.bench)
        .bind(call.machine)
        .bind(&record.of.model)
        .bind(&record.of.precision)
        .bind(&record.of.form)
        .bind(record.of.rank.map(to_i64).transpose()?)
        .bind(to_i64(record.of.adapters)?)
        .bind(to_i64(record.of.batch)?)
        .bind(to_i64(record.prompt_tokens)?)
        .bind(to_i64(record.new_tokens)?)
        .bind(finite_or_0(record.first_token_s[0]))
        .bind(finite_or_0(record.first_token_s[1]))
        .bind(finite_or_0(record.first_token_s[2]))
        .bind(finite_or_0(record.token_s[0]))
        .bind(finite_or_0(record.token_s[1]))
        .bind(finite_or_0(record.token_s[2]))
        .bind(finite_or_0(record.prefill_tokens_per_s))
        .bind(finite_or_0(record.decode_tokens_per_s))
        .bind(to_i64(record.peak_memory_bytes)?)
        .bind(to_i64(record.cache_bytes)?)
        .execute(connection)
        .await
        .map(drop)
        .map_err(|error| self.store.error(error))
    }

    /// Writes a point from text to text.
    async fn insert_requests(
        self,
        connection: &mut SqliteConnection,
        call: BenchCall,
        record: &RequestRecord,
    ) -> Result<(), StoreError> {
        sqlx::query(
            "insert into infer_requests (bench, machine_id, model, precision, form, rank, adapters, batch, requests,
                 prompt_tokens, new_tokens, first_token_p50_s, first_token_p95_s, first_token_p99_s, request_p50_s,
                 request_p95_s, request_p99_s, tokens_per_s, requests_per_s, text_share, peak_memory_bytes)
             values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        )
        .bind(call.bench)
        .bind(call.machine)
        .bind(&record.of.model)
        .bind(&record.of.precision)
        .bind(&record.of.form)
        .bind(record.of.rank.map(to_i64).transpose()?)
        .bind(to_i64(record.of.adapters)?)
        .bind(to_i64(record.of.batch)?)
        .bind(to_i64(record.requests)?)
        .bind(finite_or_0(record.prompt_tokens))
        .bind(finite_or_0(record.new_tokens))
        .bind(finite_or_0(record.first_token_s[0]))
        .bind(finite_or_0(record.first_token_s[1]))
        .bind(finite_or_0(record.first_token_s[2]))
        .bind(finite_or_0(record.request_s[0]))
        .bind(finite_or_0(record.request_s[1]))
        .bind(finite_or_0(record.request_s[2]))
        .bind(finite_or_0(record.tokens_per_s))
        .bind(finite_or_0(record.requests_per_s))
        .bind(finite_or_0(record.text_share))
        .bind(to_i64(record.peak_memory_bytes)?)
        .execute(connection)
        .await
        .map(drop)
        .map_err(|error| self.store.error(error))
    }
}
