# Filled in with the shaders.
function(kvrun_embed_shaders target)
endfunction()
