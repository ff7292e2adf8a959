//! The cache of compiled scripts, bounded by number and by memory.

use std::num::NonZeroUsize;
use std::sync::Arc;

use lru::LruCache;

use crate::compile::CompiledScript;

/// Maximum number of compiled scripts in the cache.
const MAX_CACHED_SCRIPTS: NonZeroUsize = NonZeroUsize::new(1000).unwrap();
/// Memory of all compiled scripts in the cache, in bytes.
const MAX_CACHED_BYTES: usize = 32 << 20;

/// The most recently used scripts, by the SHA-256 of their text.
#[derive(Debug)]
pub(crate) struct ScriptCache {
    scripts: LruCache<[u8; 32], Arc<CompiledScript>>,
    bytes: usize,
    max_bytes: usize,
}

impl Default for ScriptCache {
    fn default() -> Self {
        Self {
            scripts: LruCache::new(MAX_CACHED_SCRIPTS),
            bytes: 0,
            max_bytes: MAX_CACHED_BYTES,
        }
    }
}

impl ScriptCache {
    pub(crate) fn get(&mut self, key: &[u8; 32]) -> Option<Arc<CompiledScript>> {
        self.scripts.get(key).cloned()
    }

    /// Adds a script, and removes the least recently used ones if there are too many.
    pub(crate) fn add(&mut self, key: [u8; 32], script: Arc<CompiledScript>) {
        self.bytes += script.memory_bytes();
        if let Some((_, removed)) = self.scripts.push(key, script) {
            self.bytes -= removed.memory_bytes();
        }
        while self.bytes > self.max_bytes {
            match self.scripts.pop_lru() {
                Some((_, script)) => self.bytes -= script.memory_bytes(),
                None => break,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ScriptCompiler;

    #[test]
    fn the_cache_is_bounded_by_memory() {
        assert_eq!(ScriptCache::default().max_bytes, MAX_CACHED_BYTES);
        let compiler = ScriptCompiler::default();
        let mut cache = ScriptCache {
            max_bytes: 5_000,
            ..ScriptCache::default()
        };
        for number in 0..10_u8 {
            let nested = format!("namespace a{}{{}} return {number}", ".a".repeat(40));
            let (script, _) = compiler.compile(&nested, 1000).expect("it compiles");
            assert!(script.memory_bytes() > 1_000, "{}", script.memory_bytes());
            cache.add([number; 32], script);
            assert!(cache.bytes <= cache.max_bytes);
        }
        assert!(cache.get(&[0; 32]).is_none());
        assert!(cache.get(&[9; 32]).is_some());
    }

    #[test]
    fn a_script_that_is_added_again_counts_once() {
        let (compiler, mut cache) = (ScriptCompiler::default(), ScriptCache::default());
        let (script, _) = compiler.compile("return 1", 100).expect("it compiles");
        cache.add([1; 32], script.clone());
        cache.add([1; 32], script.clone());
        assert_eq!(cache.bytes, script.memory_bytes());
    }
}
