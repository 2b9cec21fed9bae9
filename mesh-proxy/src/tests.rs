//! What Linkerd's own tests prove of its proxy, of ours: whole proxies between applications in one
//! process, beside a control plane that says what each test wants. Time stands still unless a test
//! moves it, so that whoever waits is seen to wait, and nothing depends on how quick a machine is.
//!
//! The sections are those of the reference's tests: discovery, direct connections, identity, HTTP/1
//! carried as HTTP/2, shutdown, transparency. `policy` is about what a proxy may let through.

mod admin;
mod app;
mod direct;
mod discovery;
mod identity;
mod orig_proto;
mod outside;
mod policy;
mod restarts;
mod shutdown;
mod transparency;
mod world;
