"""The tables of the SQL stores, version by version. Owns the schema and nothing of its use."""

OPEN = "status IN ('working', 'input_required')"
"""Tasks that are not final; the same words as in the index."""

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """
        CREATE TABLE antiphon_rounds (
            server text NOT NULL,
            call text NOT NULL,
            round bigint NOT NULL,
            answers {blob} NOT NULL,
            fence bigint NOT NULL,
            state text NOT NULL,
            lease double precision NOT NULL,
            expires double precision NOT NULL,
            body {blob},
            failures bigint NOT NULL DEFAULT 0,
            started double precision NOT NULL,
            tool text NOT NULL,
            caller text NOT NULL,
            PRIMARY KEY (server, call, round)
        )
        """,
        "CREATE INDEX antiphon_rounds_expires ON antiphon_rounds (expires)",
        """
        CREATE TABLE antiphon_effects (
            server text NOT NULL,
            id text NOT NULL,
            call text NOT NULL,
            key text NOT NULL,
            function text NOT NULL,
            arguments {blob} NOT NULL,
            fence bigint NOT NULL,
            state text NOT NULL,
            lease double precision NOT NULL,
            expires double precision NOT NULL,
            started double precision NOT NULL,
            settled double precision,
            result {blob},
            error text,
            nonce {blob},
            shared bigint NOT NULL,
            tool text NOT NULL,
            caller text NOT NULL,
            restart text NOT NULL,
            seed {blob},
            generation bigint NOT NULL,
            equal text NOT NULL,
            answers {blob},
            inputs {blob},
            told bigint NOT NULL,
            stands double precision NOT NULL,
            shown {blob},
            PRIMARY KEY (server, id)
        )
        """,
        "CREATE INDEX antiphon_effects_call ON antiphon_effects (server, call, key)",
        "CREATE INDEX antiphon_effects_expires ON antiphon_effects (expires)",
        """
        CREATE INDEX antiphon_effects_started ON antiphon_effects (server, lease)
         WHERE state = 'started'
        """,
        """
        CREATE INDEX antiphon_effects_restart ON antiphon_effects (server, restart, started)
         WHERE restart <> ''
        """,
        """
        CREATE INDEX antiphon_effects_failed ON antiphon_effects (server, started)
         WHERE state = 'failed' AND equal <> ''
        """,
        "CREATE INDEX antiphon_effects_equal ON antiphon_effects (server, equal) WHERE equal <> ''",
        """
        CREATE UNIQUE INDEX antiphon_effects_one ON antiphon_effects (server, equal)
         WHERE equal <> '' AND state = 'started'
        """,
        """
        CREATE TABLE antiphon_tasks (
            server text NOT NULL,
            id text NOT NULL,
            owner text NOT NULL,
            tool text NOT NULL,
            status text NOT NULL,
            message text NOT NULL,
            created double precision NOT NULL,
            updated double precision NOT NULL,
            expires double precision NOT NULL,
            ready double precision,
            lease double precision NOT NULL,
            epoch bigint NOT NULL,
            revision bigint NOT NULL,
            cancel bigint NOT NULL,
            state {blob} NOT NULL,
            call text NOT NULL,
            version text NOT NULL,
            worker text,
            claimant text,
            before text,
            PRIMARY KEY (server, id)
        )
        """,
        """
        CREATE INDEX antiphon_tasks_ready ON antiphon_tasks (server, ready) WHERE ready IS NOT NULL
        """,
        f"CREATE INDEX antiphon_tasks_owner ON antiphon_tasks (server, owner) WHERE {OPEN}",
        "CREATE INDEX antiphon_tasks_expires ON antiphon_tasks (expires)",
        "CREATE INDEX antiphon_tasks_call ON antiphon_tasks (server, call) WHERE call <> ''",
        "CREATE INDEX antiphon_tasks_worker ON antiphon_tasks (worker) WHERE worker IS NOT NULL",
        f"CREATE INDEX antiphon_tasks_age ON antiphon_tasks (server, created, id) WHERE {OPEN}",
        "CREATE INDEX antiphon_tasks_status ON antiphon_tasks (server, status)",
        """
        CREATE TABLE antiphon_journals (
            server text NOT NULL,
            call text NOT NULL,
            round bigint NOT NULL,
            digest {blob} NOT NULL,
            owner text NOT NULL,
            size bigint NOT NULL,
            expires double precision NOT NULL,
            data {blob} NOT NULL,
            PRIMARY KEY (server, call, round, digest)
        )
        """,
        "CREATE INDEX antiphon_journals_owner ON antiphon_journals (server, owner, expires, size)",
        "CREATE INDEX antiphon_journals_expires ON antiphon_journals (expires)",
        """
        CREATE TABLE antiphon_inbox (
            server text NOT NULL,
            id text NOT NULL,
            call text NOT NULL,
            key text NOT NULL,
            task text NOT NULL,
            tool text NOT NULL,
            owner text NOT NULL,
            role text NOT NULL,
            need bigint NOT NULL,
            own bigint NOT NULL,
            assurance text NOT NULL,
            digest {blob} NOT NULL,
            arguments {blob} NOT NULL,
            created double precision NOT NULL,
            expires double precision NOT NULL,
            until double precision NOT NULL,
            closed double precision,
            status text NOT NULL,
            kind text NOT NULL,
            face {blob} NOT NULL,
            answer {blob} NOT NULL,
            behind text NOT NULL,
            PRIMARY KEY (server, id),
            UNIQUE (server, call, key, digest)
        )
        """,
        """
        CREATE INDEX antiphon_inbox_role ON antiphon_inbox (server, role, created, id)
         WHERE status = 'open'
        """,
        "CREATE INDEX antiphon_inbox_owner ON antiphon_inbox (server, owner, created, id)",
        "CREATE INDEX antiphon_inbox_closed ON antiphon_inbox (server, created, id)",
        "CREATE INDEX antiphon_inbox_task ON antiphon_inbox (server, task) WHERE status = 'open'",
        "CREATE INDEX antiphon_inbox_until ON antiphon_inbox (until)",
        """
        CREATE TABLE antiphon_decisions (
            sequence bigint NOT NULL,
            server text NOT NULL,
            item text NOT NULL,
            call text NOT NULL,
            key text NOT NULL,
            tool text NOT NULL,
            issuer text NOT NULL,
            subject text NOT NULL,
            name text NOT NULL,
            roles text NOT NULL,
            decision text NOT NULL,
            how text NOT NULL,
            auth_time double precision NOT NULL,
            shown double precision NOT NULL,
            at double precision NOT NULL,
            digest {blob} NOT NULL,
            note {blob} NOT NULL,
            previous {blob} NOT NULL,
            hash {blob} NOT NULL,
            arguments {blob},
            mac {blob} NOT NULL,
            PRIMARY KEY (server, sequence),
            UNIQUE (server, item, issuer, subject)
        )
        """,
        "CREATE INDEX antiphon_decisions_call ON antiphon_decisions (server, call)",
        "CREATE INDEX antiphon_decisions_at ON antiphon_decisions (server, at)",
        """
        CREATE INDEX antiphon_decisions_person
            ON antiphon_decisions (server, issuer, subject, at)
        """,
        """
        CREATE TABLE antiphon_held (
            server text NOT NULL,
            owner text NOT NULL,
            tool text NOT NULL,
            arguments {blob} NOT NULL,
            task text NOT NULL,
            expires double precision NOT NULL,
            PRIMARY KEY (server, owner, tool, arguments)
        )
        """,
        "CREATE INDEX antiphon_held_task ON antiphon_held (server, task)",
        "CREATE INDEX antiphon_held_expires ON antiphon_held (expires)",
        """
        CREATE TABLE antiphon_notices (
            server text NOT NULL,
            id text NOT NULL,
            item text NOT NULL,
            kind text NOT NULL,
            target text NOT NULL,
            due double precision NOT NULL,
            tries bigint NOT NULL,
            PRIMARY KEY (server, id)
        )
        """,
        "CREATE INDEX antiphon_notices_due ON antiphon_notices (server, due)",
        """
        CREATE TABLE antiphon_sessions (
            server text NOT NULL,
            id {blob} NOT NULL,
            data {blob} NOT NULL,
            expires double precision NOT NULL,
            PRIMARY KEY (server, id)
        )
        """,
        "CREATE INDEX antiphon_sessions_expires ON antiphon_sessions (expires)",
        """
        CREATE TABLE antiphon_counts (
            server text NOT NULL,
            minute bigint NOT NULL,
            name text NOT NULL,
            number bigint NOT NULL,
            PRIMARY KEY (server, minute, name)
        )
        """,
        """
        CREATE TABLE antiphon_settlements (
            server text NOT NULL,
            call text NOT NULL,
            key text NOT NULL,
            happened bigint NOT NULL,
            issuer text NOT NULL,
            subject text NOT NULL,
            name text NOT NULL,
            reason text NOT NULL,
            at double precision NOT NULL,
            mac {blob} NOT NULL
        )
        """,
        "CREATE INDEX antiphon_settlements_at ON antiphon_settlements (server, at)",
        """
        CREATE TABLE antiphon_incarnations (
            number bigint NOT NULL PRIMARY KEY,
            id text NOT NULL,
            place text NOT NULL,
            timeline bigint NOT NULL,
            synchronous bigint NOT NULL,
            position bigint NOT NULL,
            at double precision NOT NULL,
            reason text NOT NULL
        )
        """,
        """
        CREATE TABLE antiphon_workers (
            server text NOT NULL,
            id text NOT NULL,
            until double precision NOT NULL,
            PRIMARY KEY (server, id)
        ){narrow}
        """,
        """
        CREATE TABLE antiphon_audit (
            server text NOT NULL,
            sequence bigint NOT NULL,
            at double precision NOT NULL,
            call text NOT NULL,
            hash {blob} NOT NULL,
            record {blob} NOT NULL,
            PRIMARY KEY (server, sequence)
        )
        """,
        """
        CREATE INDEX antiphon_audit_call ON antiphon_audit (server, call, sequence)
         WHERE call <> ''
        """,
        """
        CREATE TABLE antiphon_audit_heads (
            server text NOT NULL PRIMARY KEY,
            sequence bigint NOT NULL,
            hash {blob} NOT NULL
        )
        """,
    ),
)
"""One entry per schema version. An entry that was released is never changed; add another."""

MAKE_VERSION = "CREATE TABLE IF NOT EXISTS antiphon_schema (version bigint NOT NULL)"
VERSION = "SELECT max(version) FROM antiphon_schema"
SET_VERSION = "INSERT INTO antiphon_schema (version) VALUES (:version)"
