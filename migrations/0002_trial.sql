-- Trials with their params, outcome and metrics. A trial is committed when it starts and when it ends.

-- One evaluation of params each. The recipe's columns are computed from its JSON, so that they cannot disagree with it.
create table trial (
    id integer primary key,             -- Identity; other tables refer to it.
    study_id integer not null references study (id) on delete cascade, -- Study.
    number integer not null check (number >= 0), -- Number within the study, from 0.
    state text not null check (state in ('waiting', 'running', 'complete', 'pruned', 'failed', 'skipped')), -- How it ended, or that it has not.
    reason text,                        -- Why: kind of failure, rule that pruned, or why it was skipped.
    detail text check (detail is null or json_valid(detail)), -- JSON of the reason with its numbers.
    phase text check (phase in ('load', 'profile', 'train', 'evaluate')), -- Phase it is in, or in which it failed.
    attempt integer not null check (attempt >= 1), -- Times it was started; above 1 where a killed search repeated it.
    machine_id integer references machine (id), -- Machine that ran it.
    recipe text check (recipe is null or json_valid(recipe)), -- JSON of the complete recipe; null with a command backend, and for params that make none.
    started_at text not null default (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')), -- When the last attempt started (UTC, ISO 8601).
    ended_at text,                      -- When it ended (UTC, ISO 8601).
    wall_s real check (wall_s >= 0 and wall_s <= 1.7976931348623157e308), -- Wall-clock seconds of the last attempt.
    rank integer generated always as (recipe ->> '$.adapter.rank') stored, -- Rank r; null in full fine-tuning, as all adapter columns.
    alpha real generated always as (recipe ->> '$.adapter.alpha') stored, -- Numerator of the scaling.
    dropout real generated always as (recipe ->> '$.adapter.dropout') stored, -- Adapter dropout, in [0, 1).
    target_modules text generated always as (
        case json_type(recipe, '$.adapter.target_modules')
            when 'array' then replace(replace(replace(recipe ->> '$.adapter.target_modules', '["', ''), '"]', ''), '","', ',')
            else recipe ->> '$.adapter.target_modules'
        end
    ) stored,                           -- Adapted modules, separated by commas, or a preset's name.
    micro_batch integer generated always as (recipe ->> '$.batch.micro_batch') stored, -- Rows that go through the model at once.
    gradient_accumulation integer generated always as (recipe ->> '$.batch.gradient_accumulation') stored, -- Micro-batches in a step.
    sequence_length integer generated always as (recipe ->> '$.batch.sequence_length') stored, -- Longest row, in tokens.
    packing integer generated always as (recipe ->> '$.batch.packing') stored, -- Whether rows hold several documents: 1 or 0.
    precision text generated always as (recipe ->> '$.precision') stored, -- Storage of the base weights.
    gradient_checkpointing text generated always as (recipe ->> '$.gradient_checkpointing') stored, -- Which activations are recomputed.
    optimizer text generated always as (recipe ->> '$.optimizer.kind') stored, -- Update rule.
    learning_rate real generated always as (recipe ->> '$.optimizer.learning_rate') stored, -- Peak learning rate.
    schedule text generated always as (recipe ->> '$.schedule.kind') stored, -- Course of the learning rate.
    warmup real generated always as (recipe ->> '$.schedule.warmup') stored, -- Warm-up: steps (1 or more) or fraction of all steps.
    weight_decay real generated always as (recipe ->> '$.optimizer.weight_decay') stored, -- Decoupled weight decay.
    rslora integer generated always as (recipe ->> '$.adapter.rslora') stored, -- Whether the scaling is rank-stabilised: 1 or 0.
    dora integer generated always as (recipe ->> '$.adapter.dora') stored, -- Whether the adapter is weight-decomposed: 1 or 0.
    unique (study_id, number)
) strict;

-- Counts by state are asked for by every progress line and by `studies`; without it they read each recipe's page.
create index trial_study_state on trial (study_id, state);

-- Sampled values; `trial_param` shows them by study and trial.
create table param (
    trial_id integer not null references trial (id) on delete cascade, -- Trial.
    name text not null,                 -- Name of the parameter.
    json text not null check (json_valid(json)), -- The value as JSON, which keeps its type exactly.
    value any not null,                 -- The value as SQL has it: integer, real or text; true is 1; a list has commas.
    primary key (trial_id, name)
) strict, without rowid;

-- "Which trials had rank 8?" over all studies.
create index param_name_value on param (name, value);

-- Measured numbers; `trial_metric` shows them by study and trial. NaN and infinities are refused, as nothing can sort them.
create table metric (
    trial_id integer not null references trial (id) on delete cascade, -- Trial.
    name text not null,                 -- Name of the metric.
    value real not null check (value between -1.7976931348623157e308 and 1.7976931348623157e308), -- Value, in the metric's unit.
    primary key (trial_id, name)
) strict, without rowid;

-- "Which trials were the fastest?" without reading every trial.
create index metric_name_value on metric (name, value);
