//! Builds the guest: compiles QuickJS and `guest/` to WebAssembly, runs `init` once, takes a
//! snapshot of the hardened realm, and compiles the snapshot ahead of time. The crate embeds the
//! result.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::{Command, exit};
use std::task::{Context, Poll, Waker};

use wasmtime::{Config, Engine, Extern, Instance, Linker, Module, Store, Val};
use wasmtime_wizer::{InstanceState, SnapshotVal, ValType, Wizer};

/// Edits to `quickjs.c`, each of which must match exactly once.
const PATCHES: &[(&str, &str)] = &[
    // The "override mistake": with every prototype frozen, `o.toString = f` on an ordinary object
    // would throw, because the inherited property is read-only. With this patch the assignment
    // creates an own property, as authors of such code expect.
    (
        concat!(
            "            } else if (!(prs->flags & JS_PROP_WRITABLE)) {\n",
            "                goto read_only_prop;\n",
            "            } else {\n",
            "                break;",
        ),
        "            } else {\n                break;",
    ),
    // Small blocks come from arenas, one per block size. With the default size, arenas would be
    // most of the memory that a small script writes to, so smaller arenas are used.
    (
        "#define JS_ARENA_SIZE              4096",
        "#define JS_ARENA_SIZE              1024",
    ),
    // A script that reaches its memory limit gets an error, for which 64 KB beyond the limit are
    // allowed: otherwise the script would catch `null`.
    (
        "        JS_ThrowInternalError(ctx, \"out of memory\");\n",
        concat!(
            "        size_t limit = rt->malloc_state.malloc_limit;\n",
            "        rt->malloc_state.malloc_limit = limit ? limit + (64 << 10) : 0;\n",
            "        JS_ThrowInternalError(ctx, \"out of memory\");\n",
            "        rt->malloc_state.malloc_limit = limit;\n",
        ),
    ),
];

/// The files of `guest/` that are evaluated as one source each. The last file of a source is a
/// function that the guest calls; the others define what it uses.
const LIBRARY: [&str; 5] = [
    "encoding.js",
    "hosts.js",
    "url.js",
    "locale.js",
    "library.js",
];
const PRELUDE: [&str; 3] = ["vocabulary.js", "harden.js", "prelude.js"];

const CFLAGS: &[&str] = &[
    "-D_GNU_SOURCE",
    "-DEMSCRIPTEN=1",
    "-DFE_DOWNWARD=0",
    "-DFE_UPWARD=0",
    "-DNDEBUG",
    "-O3",
    "-mbulk-memory",
    "-msign-ext",
    "-mnontrapping-fptoint",
    "-fno-strict-aliasing",
    "-Wno-everything",
    "-Werror=implicit-function-declaration",
];

macro_rules! error_codes {
    ($($(#[doc = $doc:literal])+ $code:ident, $retry:ident;)+) => {
        /// Names of the error classes of scripts: one for each error code of the protocol. The
        /// table is included as text, because a build dependency on the protocol would compile the
        /// guest again after every change there.
        const ERROR_CLASSES: &[&str] = &[$(stringify!($code),)+];
    };
}

include!("../protocol/src/error_codes.rs");

fn main() {
    println!("cargo::rerun-if-changed=../protocol/src/error_codes.rs");
    for input in ["guest.c"].iter().chain(&LIBRARY).chain(&PRELUDE) {
        println!("cargo::rerun-if-changed=guest/{input}");
    }
    println!("cargo::rerun-if-env-changed=SELVEDGE_QUICKJS_DIR");
    println!("cargo::rerun-if-env-changed=SELVEDGE_WASM_CC");

    let out = PathBuf::from(required_env("OUT_DIR"));
    let quickjs = quickjs_package();
    let wasm = compile_guest(&quickjs, &out);
    let snapshot = init_and_snapshot(&wasm);
    // Identifies the build in every snapshot of a script: one build cannot use the memory of
    // another.
    println!(
        "cargo::rustc-env=SELVEDGE_GUEST={:016x}",
        fingerprint(&snapshot)
    );
    let code = precompile(&snapshot);
    write(&out.join("guest.cwasm"), code);
}

fn fingerprint(bytes: &[u8]) -> u64 {
    use std::hash::{DefaultHasher, Hasher};
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

/// Returns the folder of the package that contains the C sources and a libc for WebAssembly.
fn quickjs_package() -> PathBuf {
    if let Some(dir) = env::var_os("SELVEDGE_QUICKJS_DIR") {
        return PathBuf::from(dir);
    }
    let output = Command::new(required_env("CARGO"))
        .args(["metadata", "--format-version=1", "--manifest-path"])
        .arg(Path::new(&required_env("CARGO_MANIFEST_DIR")).join("Cargo.toml"))
        .output()
        .unwrap_or_else(|error| {
            fail(
                &format!("cannot run cargo metadata: {error}"),
                "set SELVEDGE_QUICKJS_DIR to an unpacked rquickjs-sys",
            )
        });
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| {
        fail(
            &format!(
                "cargo metadata failed: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            ),
            "set SELVEDGE_QUICKJS_DIR to an unpacked rquickjs-sys",
        )
    });
    let manifest = metadata["packages"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|package| package["name"] == "rquickjs-sys")
        .and_then(|package| package["manifest_path"].as_str())
        .unwrap_or_else(|| {
            fail(
                "rquickjs-sys is not in the dependency graph",
                "restore it in crates/sandbox/Cargo.toml",
            )
        });
    Path::new(manifest)
        .parent()
        .map(Path::to_path_buf)
        .unwrap_or_default()
}

fn compile_guest(package: &Path, out: &Path) -> Vec<u8> {
    let guest_dir = Path::new(&required_env("CARGO_MANIFEST_DIR")).join("guest");
    let quickjs = package.join("quickjs");
    let compiler = WasmCompiler::find();

    let write_source = |file: &str, parts: &[&str]| {
        let [definitions @ .., function] = parts else {
            return;
        };
        let source = |name: &&str| read(&guest_dir.join(name));
        let text = format!(
            "(() => {{\nconst ERROR_CLASSES = {ERROR_CLASSES:?};\n{}\nreturn (\n{})\n}})()",
            definitions.iter().map(source).collect::<String>(),
            source(function)
        );
        let bytes: Vec<String> = text.bytes().map(|byte| byte.to_string()).collect();
        write(&out.join(file), bytes.join(","));
    };
    write_source("library.h", &LIBRARY);
    write_source("prelude.h", &PRELUDE);

    let mut engine = read(&quickjs.join("quickjs.c"));
    for (from, to) in PATCHES {
        if engine.matches(from).count() != 1 {
            fail(
                "this QuickJS differs from the one the guest was written for",
                "use the version of rquickjs-sys that Cargo.lock names",
            );
        }
        engine = engine.replace(from, to);
    }
    write(
        &out.join("guest_unit.c"),
        format!("{engine}\n#include \"guest.c\"\n"),
    );
    write(
        &out.join("shim_unit.c"),
        shim_without_clock(&read(&package.join("wasm-shim/shim.c"))),
    );

    let units = [
        out.join("guest_unit.c"),
        out.join("shim_unit.c"),
        quickjs.join("libregexp.c"),
        quickjs.join("libunicode.c"),
        quickjs.join("dtoa.c"),
    ];
    let mut objects = Vec::new();
    let mut running = Vec::new();
    for unit in &units {
        let object = out
            .join(unit.file_name().unwrap_or_default())
            .with_extension("o");
        let mut command = compiler.command();
        command
            .args(CFLAGS)
            .arg("-isystem")
            .arg(package.join("vendor/wasi-libc/include"));
        command
            .arg("-I")
            .arg(&quickjs)
            .arg("-I")
            .arg(&guest_dir)
            .arg("-I")
            .arg(out);
        command.arg("-c").arg(unit).arg("-o").arg(&object);
        let child = command.spawn().unwrap_or_else(|error| {
            fail(
                &format!("cannot start the C compiler: {error}"),
                WasmCompiler::HINT,
            )
        });
        running.push((unit, child));
        objects.push(object);
    }
    for (unit, mut child) in running {
        if !child.wait().is_ok_and(|status| status.success()) {
            fail(
                &format!("cannot compile {}", unit.display()),
                WasmCompiler::HINT,
            );
        }
    }

    let linked = out.join("guest.wasm");
    let status = Command::new(wasm_ld())
        .args([
            "--no-entry",
            "--stack-first",
            "-z",
            "stack-size=1048576",
            "--strip-all",
            "--gc-sections",
        ])
        .args([
            "--export=mailbox",
            "--export=heap_base",
            "--export=heap_peak",
        ])
        .args(&objects)
        .arg(package.join("vendor/wasi-libc/lib/libc.a"))
        .arg("-o")
        .arg(&linked)
        .status();
    if !status.is_ok_and(|status| status.success()) {
        fail(
            "cannot link the guest",
            "wasm-ld comes with rustc; reinstall the toolchain with rustup",
        );
    }
    fs::read(&linked).unwrap_or_else(|error| {
        fail(
            &format!("cannot read {}: {error}", linked.display()),
            "see the linker's output above",
        )
    })
}

/// Returns the package's shim without its clock: the guest has its own.
fn shim_without_clock(source: &str) -> String {
    let start = source.find("// the single host import");
    let end = source.find("// sandboxed scripts run in UTC");
    match (start, end) {
        (Some(start), Some(end)) if start < end => {
            format!("{}{}", &source[..start], &source[end..])
        }
        _ => fail(
            "this shim differs from the one the guest was written for",
            "use the version of rquickjs-sys that Cargo.lock names",
        ),
    }
}

/// A C compiler that can target WebAssembly.
struct WasmCompiler {
    command_line: Vec<String>,
}

impl WasmCompiler {
    const HINT: &str = "install clang (`apt-get install clang`, `brew install llvm`) or zig \
                        (`pip install ziglang`), or set SELVEDGE_WASM_CC to a compiler";

    fn find() -> Self {
        let mut candidates: Vec<String> = env::var("SELVEDGE_WASM_CC").into_iter().collect();
        if candidates.is_empty() {
            candidates.push("clang".into());
            candidates.extend((14..=22).rev().map(|version| format!("clang-{version}")));
            candidates.extend([
                "/opt/homebrew/opt/llvm/bin/clang".into(),
                "/usr/local/opt/llvm/bin/clang".into(),
            ]);
            candidates.extend(["python3 -m ziglang cc".into(), "zig cc".into()]);
        }
        for candidate in &candidates {
            let mut command_line: Vec<String> =
                candidate.split_whitespace().map(str::to_owned).collect();
            let zig = command_line.iter().any(|word| word.contains("zig"));
            command_line.push(format!(
                "--target=wasm32-{}",
                if zig {
                    "freestanding"
                } else {
                    "unknown-unknown"
                }
            ));
            let compiler = Self { command_line };
            let probe = PathBuf::from(required_env("OUT_DIR")).join("probe.c");
            write(&probe, "int probe(int a) { return a + 1; }\n");
            let output = compiler
                .command()
                .arg("-c")
                .arg(&probe)
                .arg("-o")
                .arg(probe.with_extension("o"))
                .output();
            if output.is_ok_and(|output| output.status.success()) {
                return compiler;
            }
        }
        fail(
            &format!(
                "no C compiler that targets WebAssembly (tried {})",
                candidates.join(", ")
            ),
            Self::HINT,
        )
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.command_line[0]);
        command.args(&self.command_line[1..]);
        command
    }
}

/// Returns the WebAssembly linker inside rustc's own installation.
fn wasm_ld() -> PathBuf {
    let output = Command::new(required_env("RUSTC"))
        .args(["--print", "sysroot"])
        .output()
        .unwrap_or_else(|error| {
            fail(
                &format!("cannot run rustc: {error}"),
                "check the Rust installation",
            )
        });
    let sysroot = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    let bin = sysroot
        .join("lib/rustlib")
        .join(required_env("HOST"))
        .join("bin/gcc-ld");
    bin.join(format!("wasm-ld{}", env::consts::EXE_SUFFIX))
}

/// Creates an engine for the target machine. The runtime in `engine.rs` must use the same settings
/// where they affect compiled code.
fn target_engine() -> Engine {
    let mut config = Config::new();
    config
        .target(&required_env("TARGET"))
        .unwrap_or_else(|error| {
            fail(
                &format!("cannot compile WebAssembly for this target: {error}"),
                "build on the machine that will run it",
            )
        });
    config.epoch_interruption(true);
    Engine::new(&config).unwrap_or_else(|error| {
        fail(
            &format!("cannot set up the WebAssembly compiler: {error}"),
            BUG_HINT,
        )
    })
}

/// Runs `init` and returns the module with the memory that it left.
fn init_and_snapshot(wasm: &[u8]) -> Vec<u8> {
    let mut config = Config::new();
    config.cranelift_opt_level(wasmtime::OptLevel::None);
    let run = || -> wasmtime::Result<Vec<u8>> {
        let engine = Engine::new(&config)?;
        let mut wizer = Wizer::new();
        wizer.init_func("init");
        let (context, instrumented) = wizer.instrument(wasm)?;
        let module = Module::new(&engine, &instrumented)?;
        let mut store = Store::new(&engine, ());
        let mut linker = Linker::new(&engine);
        linker.func_wrap("selvedge", "now", || 0.0f64)?;
        linker.func_wrap("selvedge", "message", print_guest_message)?;
        linker.define_unknown_imports_as_traps(&module)?;
        let instance = linker.instantiate(&mut store, &module)?;
        instance
            .get_typed_func::<(), ()>(&mut store, "init")?
            .call(&mut store, ())?;
        poll_ready(wizer.snapshot(&context, &mut InitializedGuest { store, instance }))
    };
    run().unwrap_or_else(|error| {
        fail(
            &format!("cannot initialize the guest: {error:?}"),
            "check guest/*.js for an error thrown while the realm is set up",
        )
    })
}

/// Prints a message of the guest, which it sends if it cannot set up its realm.
fn print_guest_message(
    mut caller: wasmtime::Caller<'_, ()>,
    _: u32,
    _: u32,
    text: u32,
    len: u32,
) -> i32 {
    if let Some(memory) = caller.get_export("memory").and_then(Extern::into_memory) {
        let text = memory
            .data(&caller)
            .get(text as usize..(text + len) as usize)
            .unwrap_or_default();
        eprintln!("guest: {}", String::from_utf8_lossy(text));
    }
    -1
}

fn precompile(snapshot: &[u8]) -> Vec<u8> {
    target_engine()
        .precompile_module(snapshot)
        .unwrap_or_else(|error| fail(&format!("cannot compile the snapshot: {error:?}"), BUG_HINT))
}

/// An instance that has run `init`, from which wizer reads globals and memory.
struct InitializedGuest {
    store: Store<()>,
    instance: Instance,
}

impl InstanceState for InitializedGuest {
    async fn global_get(&mut self, name: &str, _: ValType) -> SnapshotVal {
        match self
            .instance
            .get_export(&mut self.store, name)
            .and_then(Extern::into_global)
            .map(|global| global.get(&mut self.store))
        {
            Some(Val::I32(value)) => SnapshotVal::I32(value),
            Some(Val::I64(value)) => SnapshotVal::I64(value),
            Some(Val::F32(value)) => SnapshotVal::F32(value),
            Some(Val::F64(value)) => SnapshotVal::F64(value),
            _ => fail(&format!("the guest has no global {name}"), BUG_HINT),
        }
    }

    async fn memory_contents(&mut self, name: &str, contents: impl FnOnce(&[u8]) + Send) {
        match self.instance.get_memory(&mut self.store, name) {
            Some(memory) => contents(memory.data(&self.store)),
            None => fail(&format!("the guest has no memory {name}"), BUG_HINT),
        }
    }
}

/// Polls a future that is ready at once.
fn poll_ready<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => fail("the snapshot is not ready at once", BUG_HINT),
    }
}

fn required_env(variable: &str) -> String {
    env::var(variable).unwrap_or_else(|_| {
        fail(
            &format!("{variable} is not set"),
            "run this build script through cargo",
        )
    })
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| {
        fail(
            &format!("cannot read {}: {error}", path.display()),
            "run `cargo fetch`",
        )
    })
}

fn write(path: &Path, contents: impl AsRef<[u8]>) {
    if let Err(error) = fs::write(path, contents) {
        fail(
            &format!("cannot write {}: {error}", path.display()),
            "check the free space and the permissions of the target folder",
        );
    }
}

const BUG_HINT: &str = "report this as a bug";

fn fail(message: &str, hint: &str) -> ! {
    eprintln!("error: {message}\nhint: {hint}");
    exit(1)
}
