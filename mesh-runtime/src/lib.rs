//! What every daemon of the mesh needs: logs, metrics, admin server, drain, tasks.
