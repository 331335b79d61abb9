-- The tables of a trackio project that hold runs (trackio 0.43); trackio itself adds the others when it opens the file.
create table if not exists metrics (
    id integer primary key autoincrement,
    run_id text not null,
    timestamp text not null,
    run_name text not null,
    step integer not null,
    metrics text not null,
    log_id text,
    space_id text
);

create unique index if not exists idx_metrics_log_id on metrics (log_id) where log_id is not null;

create index if not exists idx_metrics_run_step on metrics (run_id, step);

create table if not exists configs (
    id integer primary key autoincrement,
    run_id text not null,
    run_name text not null,
    config text not null,
    created_at text not null,
    unique (run_id)
);
