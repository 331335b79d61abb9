-- What the files of a study held when it began, so that a search that continues notices when they hold something else.

-- Files that the trials of a study read.
create table study_input (
    study_id integer not null references study (id) on delete cascade, -- Study.
    role text not null,                 -- What it is: `config`, `weights`, `tokenizer`, `chat template`, `training data` or `held-out data`.
    position integer not null check (position >= 0), -- Number among the files of that role, from 0.
    path text not null,                 -- Where it lay. Another place with the same content is the same input.
    fingerprint text not null,          -- SHA-256 of the content in hexadecimal; of weights that of their header, length and sampled blocks.
    primary key (study_id, role, position)
) strict, without rowid;
