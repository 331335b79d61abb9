-- Studies and what they were asked. Every other table hangs on a study.

-- Marks the file as a results database of this program ("ptun"), so that no other program's file is ever migrated.
pragma application_id = 1886680430;

-- Facts about the database file itself.
create table note (
    name text primary key,              -- What the note tells, such as `created_by`.
    value text not null                 -- The fact.
) strict, without rowid;

-- Machines that trials ran on; one row for each different set of facts.
create table machine (
    id integer primary key,             -- Identity; other tables refer to it.
    host text not null,                 -- Host name.
    os text not null,                   -- Operating system and its version.
    cpu text not null,                  -- Processor model.
    cpu_cores integer not null,         -- Logical cores.
    memory_bytes integer not null,      -- Main memory, in bytes.
    device text not null,               -- What trained: `cpu`, or the GPU's name.
    device_memory_bytes integer not null, -- Memory of that device, in bytes; main memory for `cpu`.
    driver text not null,               -- Driver version of the device; empty for `cpu`.
    unique (host, os, cpu, cpu_cores, memory_bytes, device, device_memory_bytes, driver)
) strict;

-- Base models that studies tuned.
create table model (
    id integer primary key,             -- Identity; other tables refer to it.
    source text not null,               -- Directory or hub id, as the recipe has it.
    fingerprint text not null,          -- Hash that tells two models of one source apart; empty where not known.
    architecture text not null,         -- Family, such as `qwen2`; empty where not known.
    parameters integer,                 -- Number of weights of the base model.
    unique (source, fingerprint)
) strict;

-- Data sets that studies trained on.
create table data_set (
    id integer primary key,             -- Identity; other tables refer to it.
    source text not null,               -- Training file(s), as the recipe has them.
    fingerprint text not null,          -- Hash that tells two states of one file apart; empty where not known.
    rows integer,                       -- Training rows.
    tokens integer,                     -- Training tokens.
    held_out_rows integer,              -- Held-out rows that the loss is measured on.
    unique (source, fingerprint)
) strict;

-- One tuning run each: search space, objectives and seed.
create table study (
    id integer primary key,             -- Identity; other tables refer to it.
    name text not null unique check (name <> ''), -- The `study:` of the search-space file.
    space_path text not null,           -- Search-space file that began the study.
    space_text text not null,           -- That file's text, as it was last run.
    definition text not null check (json_valid(definition)), -- JSON of everything that decides what a trial means.
    definition_hash text not null,      -- SHA-256 of the definition, objectives and constraints, in hexadecimal.
    seed integer not null,              -- Seed of every random number of the study (64 bits, shown signed).
    sampler text not null,              -- Sampler that proposes the params.
    model_id integer references model (id), -- Base model that is tuned.
    data_set_id integer references data_set (id), -- Data that it is tuned on.
    machine_id integer references machine (id), -- Machine that ran the study last.
    created_at text not null default (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')), -- When the study began (UTC, ISO 8601).
    resumed_at text                     -- When it was last resumed (UTC, ISO 8601).
) strict;

-- What a study trades off. At most six, because `pareto_front` compares them as six columns.
create table study_objective (
    study_id integer not null references study (id) on delete cascade, -- Study.
    position integer not null check (position between 0 and 5), -- Place in the search-space file, from 0.
    metric text not null,               -- Metric that trials report.
    direction text not null check (direction in ('minimize', 'maximize')), -- Which way is better.
    reference real,                     -- Reference value of the hypervolume, in the metric's unit.
    known_after integer,                -- Steps after which the metric is known; null where only the end tells.
    primary key (study_id, position),
    unique (study_id, metric)
) strict, without rowid;

-- Bounds that a trial must keep to be on the front.
create table study_constraint (
    study_id integer not null references study (id) on delete cascade, -- Study.
    position integer not null,          -- Place in the search-space file, from 0.
    metric text not null,               -- Metric that is bounded.
    bound text not null check (bound in ('at_most', 'at_least')), -- Which side of the limit is allowed; the limit is.
    "limit" real not null,              -- Limit, in the metric's unit.
    primary key (study_id, position)
) strict, without rowid;
