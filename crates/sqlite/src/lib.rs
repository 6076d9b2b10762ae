//! The Store on SQLite: one writer thread, group commit, a pool of readers, migrations.
