//! Ceilings of machines: the speeds that nothing on them exceeds.

use super::row::{finite_or_0, to_i64};
use super::{MachineRecord, Store, StoreError};

/// Measured ceilings as they are kept.
#[derive(Clone, Debug, PartialEq)]
pub struct CeilingRecord {
    /// Version and kind of build of the program.
    pub build: String,
    pub threads: u64,
    pub memory_bytes_per_s: f64,
    pub wake_s: f64,
    /// JSON of all that was measured.
    pub grids: String,
    /// Share of the speed that may have been lost to other programs; 0 where it was quiet.
    pub disturbed: f64,
}

/// Measured ceilings of machines.
#[derive(Clone, Copy, Debug)]
pub struct Ceilings<'a> {
    pub(super) store: &'a Store,
}

impl Ceilings<'_> {
    /// Keeps the ceilings of a machine, in place of those that the same build measured before.
    pub async fn record(self, machine: &MachineRecord, record: &CeilingRecord) -> Result<(), StoreError> {
        let mut transaction = self.store.begin().await?;
        let id = self.store.facts().machine_id(&mut transaction, machine).await?;
        sqlx::query(
            "insert or replace into ceiling (machine_id, build, threads, memory_bytes_per_s, wake_s, grids, disturbed)
             values (?, ?, ?, ?, ?, ?, ?)",
        )
        .bind(id)
        .bind(&record.build)
        .bind(to_i64(record.threads)?)
        .bind(finite_or_0(record.memory_bytes_per_s))
        .bind(finite_or_0(record.wake_s))
        .bind(&record.grids)
        .bind(finite_or_0(record.disturbed).clamp(0.0, 1.0))
        .execute(&mut *transaction)
        .await
        .map_err(|error| self.store.error(error))?;
        self.store.commit(transaction).await
    }

    /// The JSON of the ceilings that `build` measured on a machine with so many threads, and the share of the speed that may have
    /// been lost to other programs meanwhile.
    pub async fn of(
        self,
        machine: &MachineRecord,
        build: &str,
        threads: u64,
    ) -> Result<Option<(String, f64)>, StoreError> {
        sqlx::query_as(
            "select grids, disturbed from ceiling join machine on machine.id = ceiling.machine_id
             where host = ? and os = ? and cpu = ? and cpu_cores = ? and memory_bytes = ? and device = ?
               and device_memory_bytes = ? and driver = ? and build = ? and threads = ?",
        )
        .bind(&machine.host)
        .bind(&machine.os)
        .bind(&machine.cpu)
        .bind(to_i64(machine.cpu_cores)?)
        .bind(to_i64(machine.memory_bytes)?)
        .bind(&machine.device)
        .bind(to_i64(machine.device_memory_bytes)?)
        .bind(&machine.driver)
        .bind(build)
        .bind(to_i64(threads)?)
        .fetch_optional(&self.store.pool)
        .await
        .map_err(|error| self.store.error(error))
    }
}
