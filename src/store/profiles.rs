//! Profiles: one row each, with rows of phases, ops, device samples and diagnoses.

use sqlx::SqliteConnection;

use super::row::{finite, finite_or_0, to_i64};
use super::{MachineRecord, Store, StoreError, StudyId};
use peft_tune_core::study::TrialNumber;

/// `profile.id`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, sqlx::Type)]
#[sqlx(transparent)]
pub struct ProfileId(pub i64);

/// A profile as it is handed to the database. Numbers that are not finite are stored as null.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProfileRecord {
    /// Trial whose recipe was profiled.
    pub trial: Option<(StudyId, TrialNumber)>,
    /// Recipe file, or study and number of the trial.
    pub name: String,
    pub machine: Option<MachineRecord>,
    pub recipe: serde_json::Value,
    pub tokens_per_s: f64,
    pub interval: f64,
    pub measured_steps: u64,
    pub peak_memory_bytes: u64,
    pub mfu: Option<f64>,
    pub hfu: Option<f64>,
    pub joules_per_token: Option<f64>,
    /// The whole profile as JSON.
    pub document: serde_json::Value,
    pub phases: Vec<PhaseRecord>,
    pub ops: Vec<OpRecord>,
    pub samples: Vec<SampleRecord>,
    pub diagnoses: Vec<DiagnosisRecord>,
}

/// A phase of a profile's steps; see the table `phase`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PhaseRecord {
    pub phase: String,
    pub seconds: f64,
    /// Half width of the seconds' 95% confidence interval, relative; NaN where there is none.
    pub interval: f64,
    pub share: f64,
    pub op_seconds: f64,
}

/// An op of a profile's steps; see the table `op_profile`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OpRecord {
    pub name: String,
    pub phase: String,
    pub shape: String,
    pub storage: String,
    pub calls: f64,
    pub seconds: f64,
    pub share: f64,
    pub flops: f64,
    pub bytes: f64,
    pub gflop_per_s: f64,
    pub gb_per_s: f64,
    pub roofline_share: Option<f64>,
}

/// One look at a device; see the table `device_sample`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SampleRecord {
    pub at_s: f64,
    pub device: String,
    pub utilisation: Option<f64>,
    pub process_cores: Option<f64>,
    pub other_cores: Option<f64>,
    pub resident_bytes: Option<u64>,
    pub memory_bytes: Option<u64>,
    pub power_w: Option<f64>,
    pub temperature_c: Option<f64>,
    pub clock_mhz: Option<f64>,
    pub throttled: Option<bool>,
}

/// A change that a profile proposes; see the table `diagnosis`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DiagnosisRecord {
    pub rule: String,
    pub evidence: String,
    pub change: String,
    pub metric: String,
    pub predicted_gain: Option<f64>,
    pub predicted_by: Option<String>,
    pub measured_gain: Option<f64>,
    pub outcome: Option<String>,
}

/// A stored profile.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredProfile {
    pub id: ProfileId,
    pub name: String,
    /// Moment of storing in UTC, ISO 8601.
    pub created_at: String,
    pub recipe: serde_json::Value,
    pub document: serde_json::Value,
}

/// A finding of a trial's latest profile.
#[derive(Clone, Debug, PartialEq, sqlx::FromRow)]
pub struct TrialFinding {
    #[sqlx(rename = "number", try_from = "i64")]
    pub trial: TrialNumber,
    pub rule: String,
    pub evidence: String,
    pub change: String,
    /// Metric that the change gains: `throughput` (relative) or `peak_memory` (bytes saved).
    pub metric: String,
    pub predicted_gain: Option<f64>,
    pub measured_gain: Option<f64>,
}

/// Profiles of trials and recipes, with what they found.
#[derive(Clone, Copy, Debug)]
pub struct Profiles<'a> {
    pub(super) store: &'a Store,
}

#[derive(sqlx::FromRow)]
struct ProfileRow {
    id: i64,
    name: String,
    created_at: String,
    recipe: String,
    document: String,
}

impl Profiles<'_> {
    /// Stores a profile with all that belongs to it, or nothing.
    pub async fn record(self, record: &ProfileRecord) -> Result<ProfileId, StoreError> {
        let trial = match record.trial {
            Some((study, number)) => Some(self.store.trials().id(study, number).await?.0),
            None => None,
        };
        let mut transaction = self.store.begin().await?;
        let machine = match &record.machine {
            Some(machine) => Some(self.store.facts().machine_id(&mut transaction, machine).await?),
            None => None,
        };
        let id: i64 = sqlx::query_scalar(
            "insert into profile (trial_id, name, machine_id, recipe, tokens_per_s, interval, measured_steps,
                                  peak_memory_bytes, mfu, hfu, joules_per_token, document)
             values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) returning id",
        )
        .bind(trial)
        .bind(&record.name)
        .bind(machine)
        .bind(record.recipe.to_string())
        .bind(finite_or_0(record.tokens_per_s))
        .bind(finite(record.interval))
        .bind(to_i64(record.measured_steps)?)
        .bind(to_i64(record.peak_memory_bytes)?)
        .bind(record.mfu.and_then(finite))
        .bind(record.hfu.and_then(finite))
        .bind(record.joules_per_token.and_then(finite))
        .bind(record.document.to_string())
        .fetch_one(&mut *transaction)
        .await
        .map_err(|error| self.store.error(error))?;
        self.insert_phases(&mut transaction, id, &record.phases).await?;
        self.insert_ops(&mut transaction, id, &record.ops).await?;
        self.insert_samples(&mut transaction, id, &record.samples).await?;
        self.insert_diagnoses(&mut transaction, id, &record.diagnoses).await?;
        self.store.commit(transaction).await?;
        Ok(ProfileId(id))
    }

    /// The profile with an id; `None` where there is none.
    pub async fn find(self, id: ProfileId) -> Result<Option<StoredProfile>, StoreError> {
        let row: Option<ProfileRow> =
            sqlx::query_as("select id, name, created_at, recipe, document from profile where id = ?")
                .bind(id.0)
                .fetch_optional(&self.store.pool)
                .await
                .map_err(|error| self.store.error(error))?;
        row.map(|row| self.stored(row)).transpose()
    }

    /// Findings of the latest profile of each trial of a study, in order of rank.
    pub async fn findings(self, study: StudyId) -> Result<Vec<TrialFinding>, StoreError> {
        sqlx::query_as(
            "select trial.number, rule, evidence, change, diagnosis.metric, predicted_gain, measured_gain
             from diagnosis join profile on profile.id = diagnosis.profile_id
                            join trial on trial.id = profile.trial_id
             where trial.study_id = ?
               and profile.id = (select max(id) from profile as other where other.trial_id = trial.id)
             order by trial.number, position",
        )
        .bind(study.0)
        .fetch_all(&self.store.pool)
        .await
        .map_err(|error| self.store.error(error))
    }

    fn stored(self, row: ProfileRow) -> Result<StoredProfile, StoreError> {
        let what = |part: &str| format!("the {part} of profile {}", row.id);
        Ok(StoredProfile {
            id: ProfileId(row.id),
            recipe: self.store.read_json(&row.recipe, || what("recipe"))?,
            document: self.store.read_json(&row.document, || what("document"))?,
            name: row.name,
            created_at: row.created_at,
        })
    }

    async fn insert_phases(
        self,
        connection: &mut SqliteConnection,
        profile: i64,
        phases: &[PhaseRecord],
    ) -> Result<(), StoreError> {
        for (position, phase) in (0i64..).zip(phases) {
            sqlx::query(
                "insert into phase (profile_id, position, phase, seconds, interval, share, op_seconds)
                 values (?, ?, ?, ?, ?, ?, ?)",
            )
            .bind(profile)
            .bind(position)
            .bind(&phase.phase)
            .bind(finite_or_0(phase.seconds))
            .bind(finite(phase.interval))
            .bind(finite_or_0(phase.share))
            .bind(finite_or_0(phase.op_seconds))
            .execute(&mut *connection)
            .await
            .map_err(|error| self.store.error(error))?;
        }
        Ok(())
    }

    async fn insert_ops(
        self,
        connection: &mut SqliteConnection,
        profile: i64,
        ops: &[OpRecord],
    ) -> Result<(), StoreError> {
        for (position, op) in (0i64..).zip(ops) {
            sqlx::query(
                "insert into op_profile (profile_id, position, name, phase, shape, storage, calls, seconds, share, flops,
                                         bytes, gflop_per_s, gb_per_s, roofline_share)
                 values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            )
            .bind(profile)
            .bind(position)
            .bind(&op.name)
            .bind(&op.phase)
            .bind(&op.shape)
            .bind(&op.storage)
            .bind(finite_or_0(op.calls))
            .bind(finite_or_0(op.seconds))
            .bind(finite_or_0(op.share))
            .bind(finite_or_0(op.flops))
            .bind(finite_or_0(op.bytes))
            .bind(finite_or_0(op.gflop_per_s))
            .bind(finite_or_0(op.gb_per_s))
            .bind(op.roofline_share.and_then(finite))
            .execute(&mut *connection)
            .await
            .map_err(|error| self.store.error(error))?;
        }
        Ok(())
    }

    async fn insert_samples(
        self,
        connection: &mut SqliteConnection,
        profile: i64,
        samples: &[SampleRecord],
    ) -> Result<(), StoreError> {
        for sample in samples {
            sqlx::query(
                "insert or replace into device_sample (profile_id, at_s, device, utilisation, process_cores,
                     other_cores, resident_bytes, memory_bytes, power_w, temperature_c, clock_mhz, throttled)
                 values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            )
            .bind(profile)
            .bind(finite_or_0(sample.at_s))
            .bind(&sample.device)
            .bind(sample.utilisation.and_then(finite))
            .bind(sample.process_cores.and_then(finite))
            .bind(sample.other_cores.and_then(finite))
            .bind(sample.resident_bytes.map(to_i64).transpose()?)
            .bind(sample.memory_bytes.map(to_i64).transpose()?)
            .bind(sample.power_w.and_then(finite))
            .bind(sample.temperature_c.and_then(finite))
            .bind(sample.clock_mhz.and_then(finite))
            .bind(sample.throttled)
            .execute(&mut *connection)
            .await
            .map_err(|error| self.store.error(error))?;
        }
        Ok(())
    }

    async fn insert_diagnoses(
        self,
        connection: &mut SqliteConnection,
        profile: i64,
        diagnoses: &[DiagnosisRecord],
    ) -> Result<(), StoreError> {
        for (position, diagnosis) in (0i64..).zip(diagnoses) {
            sqlx::query(
                "insert into diagnosis (profile_id, position, rule, evidence, change, metric, predicted_gain,
                                        predicted_by, measured_gain, outcome)
                 values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            )
            .bind(profile)
            .bind(position)
            .bind(&diagnosis.rule)
            .bind(&diagnosis.evidence)
            .bind(&diagnosis.change)
            .bind(&diagnosis.metric)
            .bind(diagnosis.predicted_gain.and_then(finite))
            .bind(&diagnosis.predicted_by)
            .bind(diagnosis.measured_gain.and_then(finite))
            .bind(&diagnosis.outcome)
            .execute(&mut *connection)
            .await
            .map_err(|error| self.store.error(error))?;
        }
        Ok(())
    }
}
