//! Facts that studies and trials share: machines, models and data sets, a row each.

use sqlx::SqliteConnection;

use crate::store::row::to_i64;
use crate::store::{DataSetRecord, MachineRecord, ModelRecord, Store, StoreError};

/// Statements that delete the facts which nothing refers to, one for each table.
const DELETE_UNUSED: [&str; 3] = [
    "delete from machine where not exists (select 1 from study where machine_id = machine.id)
         and not exists (select 1 from trial where machine_id = machine.id)",
    "delete from model where not exists (select 1 from study where model_id = model.id)",
    "delete from data_set where not exists (select 1 from study where data_set_id = data_set.id)",
];

/// Machines, models and data sets.
#[derive(Clone, Copy, Debug)]
pub(in crate::store) struct Facts<'a> {
    pub(in crate::store) store: &'a Store,
}

impl Facts<'_> {
    pub(in crate::store) async fn machine_id(
        self,
        connection: &mut SqliteConnection,
        machine: &MachineRecord,
    ) -> Result<i64, StoreError> {
        // An update that changes nothing, so that a row that is already there returns its id too.
        sqlx::query_scalar(
            "insert into machine (host, os, cpu, cpu_cores, memory_bytes, device, device_memory_bytes, driver)
             values (?, ?, ?, ?, ?, ?, ?, ?)
             on conflict do update set host = excluded.host
             returning id",
        )
        .bind(&machine.host)
        .bind(&machine.os)
        .bind(&machine.cpu)
        .bind(to_i64(machine.cpu_cores)?)
        .bind(to_i64(machine.memory_bytes)?)
        .bind(&machine.device)
        .bind(to_i64(machine.device_memory_bytes)?)
        .bind(&machine.driver)
        .fetch_one(connection)
        .await
        .map_err(|error| self.store.error(error))
    }

    pub(super) async fn model_id(
        self,
        connection: &mut SqliteConnection,
        model: &ModelRecord,
    ) -> Result<i64, StoreError> {
        sqlx::query_scalar(
            "insert into model (source, fingerprint, architecture, parameters) values (?, ?, ?, ?)
             on conflict do update set source = excluded.source
             returning id",
        )
        .bind(&model.source)
        .bind(&model.fingerprint)
        .bind(&model.architecture)
        .bind(model.parameters.map(to_i64).transpose()?)
        .fetch_one(connection)
        .await
        .map_err(|error| self.store.error(error))
    }

    pub(super) async fn data_set_id(
        self,
        connection: &mut SqliteConnection,
        data_set: &DataSetRecord,
    ) -> Result<i64, StoreError> {
        let id: i64 = sqlx::query_scalar(
            "insert into data_set (source, fingerprint, rows, tokens, held_out_rows) values (?, ?, ?, ?, ?)
             on conflict do update set rows = excluded.rows, tokens = excluded.tokens, held_out_rows = excluded.held_out_rows
             returning id",
        )
        .bind(&data_set.source)
        .bind(&data_set.fingerprint)
        .bind(data_set.rows.map(to_i64).transpose()?)
        .bind(data_set.tokens.map(to_i64).transpose()?)
        .bind(data_set.held_out_rows.map(to_i64).transpose()?)
        .fetch_one(&mut *connection)
        .await
        .map_err(|error| self.store.error(error))?;
        if let Some(learnt) = &data_set.learnt {
            sqlx::query("insert or replace into data_learnt (data_set_id, summary) values (?, ?)")
                .bind(id)
                .bind(learnt)
                .execute(connection)
                .await
                .map_err(|error| self.store.error(error))?;
        }
        Ok(id)
    }

    /// Deletes the facts that no study and no trial refers to.
    pub(super) async fn delete_unused(self, connection: &mut SqliteConnection) -> Result<(), StoreError> {
        for statement in DELETE_UNUSED {
            // Facts that a later table refers to as well stay: a foreign key that would break is not an error here.
            let deleted = sqlx::query(statement).execute(&mut *connection).await;
            match deleted {
                Err(error) if !is_constraint(&error) => return Err(self.store.error(error)),
                _ => {}
            }
        }
        Ok(())
    }
}

/// Whether SQLite refused because something still refers to the row.
fn is_constraint(error: &sqlx::Error) -> bool {
    crate::store::error::sqlite_code(error).is_some_and(|code| code & 0xff == 19)
}
