//! Taking studies over from another database.
//!
//! Rows are copied by what the schema says of itself, so that a table that is added to it is copied too: ids get
//! new numbers, foreign keys follow them, facts that both files hold (machines, models, data sets) are joined. Nothing
//! that is there already is changed.

use std::path::{Path, PathBuf};

use sqlx::{AssertSqlSafe, Row, SqliteConnection};

use crate::store::row::to_u64;
use crate::store::{Store, StoreError};

/// Tables that hold no study's rows, and requests to a search on the other machine.
const NOT_COPIED: [&str; 3] = ["note", "_sqlx_migrations", "request"];

/// A wish of what to take over, and under which name.
#[derive(Clone, Debug, Default)]
pub struct ImportWish {
    /// Name of the one study to take over; all where absent.
    pub study: Option<String>,
    /// New name of the one study that is taken over.
    pub rename: Option<String>,
}

/// A study of the other database, and how its import ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// Name in the other database.
    pub study: String,
    pub outcome: ImportOutcome,
}

/// Outcome of the import of one study.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImportOutcome {
    /// Copied with so many trials, under its own or another name.
    Copied { name: String, trials: u64 },
    /// Nothing was copied, since the study is there already.
    AlreadyThere,
}

/// A study as the other database has it.
#[derive(Clone, Debug, sqlx::FromRow)]
struct Candidate {
    id: i64,
    name: String,
    definition_hash: String,
    created_at: String,
    trials: i64,
}

/// A table and how its rows are copied.
struct Table {
    name: String,
    /// Stored columns: generated ones follow by themselves.
    columns: Vec<String>,
    /// Column and the table it refers to by `id`.
    references: Vec<(String, String)>,
    /// Columns that lead to a study, over other tables perhaps: a row without any belongs to none.
    anchors: Vec<String>,
    /// Whether other tables may refer to its `id`.
    has_id: bool,
}

impl Table {
    /// Whether studies share its rows: machines, models and data sets.
    fn is_shared(&self) -> bool {
        self.has_id && self.references.is_empty() && self.name != "study"
    }
}

/// Copies studies from the database at `path` to `store`, all or nothing.
///
/// # Errors
/// Where the other file cannot be read, does not have the study, or the wished name is taken; this database is then
/// as it was.
pub async fn import_studies(store: &Store, path: &Path, wish: &ImportWish) -> Result<Vec<Imported>, StoreError> {
    Import { store }.take_over(path, wish).await
}

/// An import into a database.
#[derive(Clone, Copy)]
struct Import<'a> {
    store: &'a Store,
}

impl Import<'_> {
    async fn take_over(self, path: &Path, wish: &ImportWish) -> Result<Vec<Imported>, StoreError> {
        let source = Source::open(path, &self.store.path).await?;
        let attached = self.attach(&source.path).await;
        let outcome = match attached {
            Ok(()) => self.copy_attached(path, wish).await,
            Err(error) => Err(error),
        };
        let detached = sqlx::query("detach database other").execute(&self.store.pool).await;
        let imported = outcome?;
        detached.map_err(|error| self.store.error(error))?;
        Ok(imported)
    }

    async fn attach(self, path: &Path) -> Result<(), StoreError> {
        sqlx::query("attach database ? as other")
            .bind(path.to_string_lossy())
            .execute(&self.store.pool)
            .await
            .map(drop)
            .map_err(|error| StoreError::from_sqlx(path, error))
    }

    async fn copy_attached(self, path: &Path, wish: &ImportWish) -> Result<Vec<Imported>, StoreError> {
        let candidates = self.candidates(path, wish).await?;
        let mut transaction = self.store.begin().await?;
        let tables = self.tables(&mut transaction).await?;
        self.prepare_maps(&mut transaction, &tables).await?;
        let mut imported = Vec::with_capacity(candidates.len());
        for candidate in candidates {
            let outcome = self.begin_study(&mut transaction, &candidate, wish).await?;
            imported.push(Imported {
                study: candidate.name,
                outcome,
            });
        }
        for table in &tables {
            self.copy(&mut transaction, table).await?;
        }
        for table in tables.iter().filter(|table| table.has_id) {
            self.run(&mut transaction, format!("drop table temp.\"map_{}\"", table.name))
                .await?;
        }
        self.store.commit(transaction).await?;
        Ok(imported)
    }

    /// Studies of the other database that are wished for.
    async fn candidates(self, path: &Path, wish: &ImportWish) -> Result<Vec<Candidate>, StoreError> {
        let all: Vec<Candidate> = sqlx::query_as(
            "select id, name, definition_hash, created_at,
                    (select count(*) from other.trial where study_id = study.id) as trials
             from other.study order by id",
        )
        .fetch_all(&self.store.pool)
        .await
        .map_err(|error| StoreError::from_sqlx(path, error))?;
        let Some(wanted) = &wish.study else {
            return Ok(all);
        };
        let known: Vec<String> = all.iter().map(|study| format!("`{}`", study.name)).collect();
        match all.into_iter().find(|study| study.name == *wanted) {
            Some(study) => Ok(vec![study]),
            None => Err(StoreError::NoStudy {
                study: wanted.clone(),
                path: path.to_owned(),
                known: known.join(", "),
            }),
        }
    }

    /// Makes the row of a study that is not there yet, under a name that is free.
    async fn begin_study(
        self,
        connection: &mut SqliteConnection,
        candidate: &Candidate,
        wish: &ImportWish,
    ) -> Result<ImportOutcome, StoreError> {
        let Some(name) = self.free_name(connection, candidate, wish).await? else {
            return Ok(ImportOutcome::AlreadyThere);
        };
        self.insert_study(connection, candidate, &name).await?;
        Ok(ImportOutcome::Copied {
            name,
            trials: to_u64(candidate.trials),
        })
    }

    /// The name under which a study is copied; `None` where it is there already.
    async fn free_name(
        self,
        connection: &mut SqliteConnection,
        candidate: &Candidate,
        wish: &ImportWish,
    ) -> Result<Option<String>, StoreError> {
        let wished = wish.rename.as_ref().filter(|_| wish.study.is_some());
        let wanted = wished.unwrap_or(&candidate.name);
        let here: Vec<(String, String, String)> =
            sqlx::query_as("select name, definition_hash, created_at from main.study")
                .fetch_all(&mut *connection)
                .await
                .map_err(|error| self.store.error(error))?;
        let is_same =
            |hash: &String, created: &String| *hash == candidate.definition_hash && *created == candidate.created_at;
        if wished.is_none() && here.iter().any(|(_, hash, created)| is_same(hash, created)) {
            return Ok(None);
        }
        let is_free = |name: &String| here.iter().all(|(taken, _, _)| taken != name);
        if wished.is_some() && !is_free(wanted) {
            return Err(StoreError::NameTaken {
                study: wanted.clone(),
                path: self.store.path.clone(),
            });
        }
        let numbered = (2..).map(|number| format!("{wanted}-{number}"));
        let mut names = std::iter::once(wanted.clone()).chain(numbered);
        Ok(names.find(is_free))
    }

    /// Notes the id that a study gets, and writes its row.
    async fn insert_study(
        self,
        connection: &mut SqliteConnection,
        candidate: &Candidate,
        name: &str,
    ) -> Result<(), StoreError> {
        sqlx::query(
            "insert into temp.map_study (old, new, name)
             select ?1, 1 + max(coalesce((select max(id) from main.study), 0),
                                coalesce((select max(new) from temp.map_study), 0)), ?2",
        )
        .bind(candidate.id)
        .bind(name)
        .execute(&mut *connection)
        .await
        .map_err(|error| self.store.error(error))?;
        // The row is written at once, so that the next study sees the name as taken.
        self.run(
            connection,
            "insert into main.study (id, name, space_path, space_text, definition, definition_hash, seed, sampler, created_at)
             select map.new, map.name, space_path, space_text, definition, definition_hash, seed, sampler, created_at
             from other.study join temp.map_study as map on map.old = study.id
             where map.new not in (select id from main.study)"
                .to_owned(),
        )
        .await
    }

    /// Every table that both files have, those that are referred to before those that refer.
    async fn tables(self, connection: &mut SqliteConnection) -> Result<Vec<Table>, StoreError> {
        let names: Vec<String> = sqlx::query_scalar(
            "select name from main.sqlite_schema where type = 'table' and name not like 'sqlite\\_%' escape '\\'
             and name in (select name from other.sqlite_schema where type = 'table')",
        )
        .fetch_all(&mut *connection)
        .await
        .map_err(|error| self.store.error(error))?;
        let mut waiting = Vec::new();
        for name in names.into_iter().filter(|name| !NOT_COPIED.contains(&name.as_str())) {
            waiting.push(self.table(connection, name).await?);
        }
        let mut ordered: Vec<Table> = Vec::with_capacity(waiting.len());
        while let Some(next) = waiting.iter().position(|table| {
            let is_placed = |name: &String| *name == table.name || ordered.iter().any(|placed| placed.name == *name);
            table.references.iter().all(|(_, to)| is_placed(to))
        }) {
            ordered.push(waiting.remove(next));
        }
        // Tables that refer to one another in a circle come last; the schema has none.
        ordered.extend(waiting);
        let mut anchored = vec!["study".to_owned()];
        for table in &mut ordered {
            let leads = table.references.iter().filter(|(_, to)| anchored.contains(to));
            table.anchors = leads.map(|(from, _)| from.clone()).collect();
            if !table.anchors.is_empty() {
                anchored.push(table.name.clone());
            }
        }
        ordered.retain(|table| anchored.contains(&table.name) || table.is_shared());
        Ok(ordered)
    }

    async fn table(self, connection: &mut SqliteConnection, name: String) -> Result<Table, StoreError> {
        // `hidden` is 2 or 3 for generated columns.
        let columns: Vec<String> = sqlx::query_scalar("select name from pragma_table_xinfo(?) where hidden = 0")
            .bind(&name)
            .fetch_all(&mut *connection)
            .await
            .map_err(|error| self.store.error(error))?;
        let rows = sqlx::query("select \"from\" as source, \"table\" as target from pragma_foreign_key_list(?)")
            .bind(&name)
            .fetch_all(&mut *connection)
            .await
            .map_err(|error| self.store.error(error))?;
        let references = rows.iter().map(|row| (row.get("source"), row.get("target"))).collect();
        let has_id = columns.iter().any(|column| column == "id");
        Ok(Table {
            name,
            columns,
            references,
            anchors: Vec::new(),
            has_id,
        })
    }

    /// One table of old and new ids for each table with ids.
    async fn prepare_maps(self, connection: &mut SqliteConnection, tables: &[Table]) -> Result<(), StoreError> {
        for table in tables.iter().filter(|table| table.has_id) {
            let create = format!(
                "create table temp.\"map_{}\" (old integer primary key, new integer not null, name text)",
                table.name
            );
            self.run(connection, create).await?;
        }
        Ok(())
    }

    async fn copy(self, connection: &mut SqliteConnection, table: &Table) -> Result<(), StoreError> {
        match table.name.as_str() {
            "study" => return self.run(connection, complete_studies(table)).await,
            name if table.is_shared() => {
                return self.join_facts(connection, name, &table.columns).await;
            }
            _ => {}
        }
        if table.has_id {
            let number = format!(
                "insert into temp.\"map_{0}\" (old, new)
                 select id, (select coalesce(max(id), 0) from main.\"{0}\") + row_number() over (order by id)
                 from other.\"{0}\" where {1}",
                table.name,
                belongs(table)
            );
            self.run(connection, number).await?;
        }
        let values: Vec<String> = table.columns.iter().map(|column| value(table, column)).collect();
        // `or ignore`: what both files hold is kept as it is here.
        let insert = format!(
            "insert or ignore into main.\"{}\" ({}) select {} from other.\"{}\" where {}",
            table.name,
            listed(&table.columns),
            values.join(", "),
            table.name,
            belongs(table)
        );
        self.run(connection, insert).await
    }

    /// Copies facts that are not here yet, and maps each to its row here: equal in every column but the id.
    async fn join_facts(
        self,
        connection: &mut SqliteConnection,
        name: &str,
        columns: &[String],
    ) -> Result<(), StoreError> {
        let facts: Vec<String> = columns.iter().filter(|column| *column != "id").cloned().collect();
        let list = listed(&facts);
        self.run(
            connection,
            format!("insert or ignore into main.\"{name}\" ({list}) select {list} from other.\"{name}\""),
        )
        .await?;
        // The first unique index says which columns make two rows the same.
        let keys: Vec<String> = sqlx::query_scalar(
            "select info.name from pragma_index_list(?1) as list, pragma_index_info(list.name) as info
             where list.\"unique\" and list.origin = 'u'",
        )
        .bind(name)
        .fetch_all(&mut *connection)
        .await
        .map_err(|error| self.store.error(error))?;
        let keys = if keys.is_empty() { facts } else { keys };
        let equal: Vec<String> = keys
            .iter()
            .map(|key| format!("here.\"{key}\" is there.\"{key}\""))
            .collect();
        self.run(
            connection,
            format!(
                "insert or ignore into temp.\"map_{name}\" (old, new)
                 select there.id, here.id from other.\"{name}\" as there join main.\"{name}\" as here on {}",
                equal.join(" and ")
            ),
        )
        .await
    }

    async fn run(self, connection: &mut SqliteConnection, sql: String) -> Result<(), StoreError> {
        // Names come from the schema, and are quoted.
        sqlx::query(AssertSqlSafe(sql))
            .execute(connection)
            .await
            .map(drop)
            .map_err(|error| self.store.error(error))
    }
}

/// Fills in the columns of the study rows that were written with their names only.
fn complete_studies(table: &Table) -> String {
    let kept = ["id", "name"];
    let sets: Vec<String> = table
        .columns
        .iter()
        .filter(|column| !kept.contains(&column.as_str()))
        .map(|column| {
            format!(
                "\"{column}\" = (select {} from other.study where id = map.old)",
                value(table, column)
            )
        })
        .collect();
    format!(
        "update main.study set {} from temp.map_study as map where map.new = study.id",
        sets.join(", ")
    )
}

/// The value of a column as it is here: an id through its map.
fn value(table: &Table, column: &str) -> String {
    let of = |map: &str| {
        format!(
            "(select new from temp.\"map_{map}\" where old = other.\"{}\".\"{column}\")",
            table.name
        )
    };
    if column == "id" {
        return of(&table.name);
    }
    match table.references.iter().find(|(from, _)| from == column) {
        Some((_, to)) => of(to),
        None => format!("other.\"{}\".\"{column}\"", table.name),
    }
}

/// Whether a row belongs to what is copied: each thing it refers to is.
fn belongs(table: &Table) -> String {
    let conditions: Vec<String> = table
        .references
        .iter()
        .map(|(from, to)| format!("(\"{from}\" is null or \"{from}\" in (select old from temp.\"map_{to}\"))"))
        .collect();
    let anchored: Vec<String> = table
        .anchors
        .iter()
        .map(|from| format!("\"{from}\" is not null"))
        .collect();
    format!("{} and ({})", conditions.join(" and "), anchored.join(" or "))
}

fn listed(columns: &[String]) -> String {
    columns
        .iter()
        .map(|column| format!("\"{column}\""))
        .collect::<Vec<_>>()
        .join(", ")
}

/// The other database, checked; a copy of it where its log has to be merged first.
struct Source {
    path: PathBuf,
    copy: Option<PathBuf>,
}

impl Source {
    async fn open(path: &Path, here: &Path) -> Result<Self, StoreError> {
        let found = super::files::resolve(path)?;
        if found == here {
            return Err(StoreError::SameFile { path: found });
        }
        match Store::open_read_only(&found).await {
            Ok(store) => {
                store.close().await?;
                Ok(Self {
                    path: found,
                    copy: None,
                })
            }
            Err(StoreError::Unmerged { .. }) => Self::copied(&found).await,
            Err(error) => Err(error),
        }
    }

    /// Merges the log of a copy, so that the other file stays as it is.
    async fn copied(path: &Path) -> Result<Self, StoreError> {
        let folder = std::env::temp_dir().join(format!("peft-tune-import-{}", std::process::id()));
        let failed = |source| StoreError::Io {
            path: folder.clone(),
            source,
        };
        std::fs::create_dir_all(&folder).map_err(failed)?;
        let copy = folder.join("other.db");
        let source = Self {
            path: copy.clone(),
            copy: Some(folder.clone()),
        };
        std::fs::copy(path, &copy).map_err(failed)?;
        let mut journal = path.as_os_str().to_owned();
        journal.push("-wal");
        if Path::new(&journal).is_file() {
            std::fs::copy(&journal, folder.join("other.db-wal")).map_err(failed)?;
        }
        Store::open(&copy).await?.close().await?;
        Ok(source)
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        if let Some(folder) = &self.copy {
            let _ = std::fs::remove_dir_all(folder);
        }
    }
}
