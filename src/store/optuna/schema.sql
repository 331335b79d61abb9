-- The tables of Optuna's relational storage, schema 12 (Optuna 3.2 to 5).
create table studies (study_id integer not null primary key, study_name varchar(512) not null);

create unique index ix_studies_study_name on studies (study_name);

create table version_info (
    version_info_id integer not null primary key check (version_info_id = 1),
    schema_version integer,
    library_version varchar(256)
);

create table study_directions (
    study_direction_id integer not null primary key,
    direction varchar(8) not null,
    study_id integer not null references studies (study_id),
    objective integer not null,
    unique (study_id, objective)
);

create table study_user_attributes (
    study_user_attribute_id integer not null primary key,
    study_id integer references studies (study_id),
    "key" varchar(512),
    value_json text,
    unique (study_id, "key")
);

create table study_system_attributes (
    study_system_attribute_id integer not null primary key,
    study_id integer references studies (study_id),
    "key" varchar(512),
    value_json text,
    unique (study_id, "key")
);

create table trials (
    trial_id integer not null primary key,
    number integer,
    study_id integer references studies (study_id),
    state varchar(8) not null,
    datetime_start datetime,
    datetime_complete datetime
);

create index ix_trials_study_id on trials (study_id);

create table trial_user_attributes (
    trial_user_attribute_id integer not null primary key,
    trial_id integer references trials (trial_id),
    "key" varchar(512),
    value_json text,
    unique (trial_id, "key")
);

create table trial_system_attributes (
    trial_system_attribute_id integer not null primary key,
    trial_id integer references trials (trial_id),
    "key" varchar(512),
    value_json text,
    unique (trial_id, "key")
);

create table trial_params (
    param_id integer not null primary key,
    trial_id integer references trials (trial_id),
    param_name varchar(512),
    param_value float,
    distribution_json text,
    unique (trial_id, param_name)
);

create table trial_values (
    trial_value_id integer not null primary key,
    trial_id integer not null references trials (trial_id),
    objective integer not null,
    value float,
    value_type varchar(7) not null,
    unique (trial_id, objective)
);

create table trial_intermediate_values (
    trial_intermediate_value_id integer not null primary key,
    trial_id integer not null references trials (trial_id),
    step integer not null,
    intermediate_value float,
    intermediate_value_type varchar(7) not null,
    unique (trial_id, step)
);

create table trial_heartbeats (
    trial_heartbeat_id integer not null primary key,
    trial_id integer not null unique references trials (trial_id),
    heartbeat datetime not null
);

create table alembic_version (version_num varchar(32) not null constraint alembic_version_pkc primary key);

insert into alembic_version values ('v3.2.0.a');
