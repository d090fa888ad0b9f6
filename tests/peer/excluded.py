"""What of numba-cuda's suite is run, at which level, and what cannot pass, with the reason.

Names are those of numba-cuda 0.30.4.  `simt/test_peer.py` holds this table to the truth: a test that passes although it
is excluded is an error, as is one that fails and is not, and a name that no test bears.
"""

#: Modules of `numba.cuda.tests` that are run.
MODULES = (
    "cudadrv.test_array_attr", "cudadrv.test_context_stack", "cudadrv.test_cuda_array_slicing",
    "cudadrv.test_cuda_auto_context", "cudadrv.test_cuda_devicerecord", "cudadrv.test_cuda_memory",
    "cudadrv.test_cuda_ndarray", "cudadrv.test_detect", "cudadrv.test_events", "cudadrv.test_host_alloc",
    "cudadrv.test_is_fp16", "cudadrv.test_managed_alloc", "cudadrv.test_pinned", "cudadrv.test_profiler",
    "cudadrv.test_select_device", "cudapy.test_alignment",
    "cudapy.test_array", "cudapy.test_array_alignment", "cudapy.test_array_args", "cudapy.test_array_methods",
    "cudapy.test_array_reductions", "cudapy.test_atomics", "cudapy.test_bfloat16",
    "cudapy.test_bfloat16_bindings", "cudapy.test_blackscholes", "cudapy.test_boolean",
    "cudapy.test_cache_hints", "cudapy.test_casting", "cudapy.test_complex", "cudapy.test_complex_kernel",
    "cudapy.test_constmem", "cudapy.test_cooperative_groups", "cudapy.test_cuda_array_interface",
    "cudapy.test_cuda_jit_no_types", "cudapy.test_device_array_capture", "cudapy.test_device_func",
    "cudapy.test_dispatcher", "cudapy.test_enums", "cudapy.test_errors", "cudapy.test_exception",
    "cudapy.test_fastmath", "cudapy.test_flow_control", "cudapy.test_forall", "cudapy.test_freevar",
    "cudapy.test_frexp_ldexp", "cudapy.test_globals", "cudapy.test_gufunc", "cudapy.test_gufunc_scalar",
    "cudapy.test_idiv", "cudapy.test_intrinsics", "cudapy.test_iterators", "cudapy.test_lang",
    "cudapy.test_laplace", "cudapy.test_libdevice", "cudapy.test_localmem", "cudapy.test_mandel",
    "cudapy.test_math", "cudapy.test_matmul", "cudapy.test_minmax", "cudapy.test_montecarlo",
    "cudapy.test_multithreads", "cudapy.test_nondet", "cudapy.test_operator", "cudapy.test_powi",
    "cudapy.test_py2_div_issue", "cudapy.test_random", "cudapy.test_record_dtype", "cudapy.test_recursion",
    "cudapy.test_reduction", "cudapy.test_retrieve_autoconverted_arrays", "cudapy.test_slicing", "cudapy.test_sm",
    "cudapy.test_sm_creation", "cudapy.test_ssa", "cudapy.test_stream_api", "cudapy.test_sync",
    "cudapy.test_transpose", "cudapy.test_ufuncs", "cudapy.test_userexc", "cudapy.test_vector_type",
    "cudapy.test_vectorize", "cudapy.test_vectorize_complex", "cudapy.test_vectorize_decor",
    "cudapy.test_vectorize_device", "cudapy.test_vectorize_scalar_arg", "cudapy.test_warp_ops",
    "doc_examples.test_cg", "doc_examples.test_cpu_gpu_compat", "doc_examples.test_globals",
    "doc_examples.test_laplace", "doc_examples.test_matmul", "doc_examples.test_montecarlo",
    "doc_examples.test_random", "doc_examples.test_reduction", "doc_examples.test_sessionize",
    "doc_examples.test_ufunc", "doc_examples.test_vecadd",
)  # fmt: skip

#: Modules that are not run: they launch no kernel, or none that the interpreter could run.
NOT_RUN = {
    "the compiler: its intermediate forms, caches, debug information and options": (
        "cudadrv.test_inline_ptx cudadrv.test_nvvm_driver cudapy.test_analysis cudapy.test_byteflow "
        "cudapy.test_caching cudapy.test_compiler cudapy.test_copy_propagate cudapy.test_debug "
        "cudapy.test_debuginfo cudapy.test_debuginfo_types cudapy.test_gufunc_scheduling cudapy.test_inline "
        "cudapy.test_inspect cudapy.test_ir cudapy.test_ir_utils cudapy.test_launch_config_sensitive "
        "cudapy.test_lineinfo cudapy.test_make_function_to_jit_function cudapy.test_optimization "
        "cudapy.test_serialize cudapy.test_tracing cudapy.test_typeconv cudapy.test_typeinfer cudapy.test_warning"
    ),
    "extensions of Numba, foreign code and bindings": (
        "cudadrv.test_linkable_code cudadrv.test_linker cudadrv.test_module_callbacks "
        "cudadrv.test_nvjitlink cudadrv.test_nvrtc cudapy.test_cffi "
        "cudapy.test_cupy_bfloat16_interop cudapy.test_extending cudapy.test_extending_types "
        "cudapy.test_fp8_bindings cudapy.test_numba_interop cudapy.test_overload doc_examples.test_cpointer "
        "doc_examples.test_ffi"
    ),
    "the driver, other processes and other devices": (
        "cudadrv.test_cuda_driver cudadrv.test_deallocations cudadrv.test_emm_plugins cudadrv.test_init "
        "cudadrv.test_reset_device cudadrv.test_runtime cudadrv.test_streams "
        "cudapy.test_ipc cudapy.test_multigpu cudapy.test_multiprocessing cudapy.test_print"
    ),
    "arrays of dates and of strings": "cudapy.test_const_string cudapy.test_datetime",
}

#: Tests that run at level "run", the others at level "check".
RUN_LEVEL = {
    "the kernel reads shared memory that nobody has written, which level check reports": (
        "cudapy.test_freevar.TestFreeVar.test_freevar",
        "cudapy.test_sm.TestSharedMemoryIssue.test_issue_2393",
        "cudapy.test_sm_creation.TestSharedMemoryCreation.test_global_build_tuple",
        "cudapy.test_sm_creation.TestSharedMemoryCreation.test_global_constant_tuple",
        "cudapy.test_sm_creation.TestSharedMemoryCreation.test_global_constants",
    ),
    "threads of a warp race without a barrier in between, which level check reports": (
        "cudapy.test_exception.TestException.test_raise_causing_warp_diverge",
        "cudapy.test_warp_ops.TestCudaWarpOperations.test_useful_syncwarp",
    ),
}

#: Modules that are run as in Numba's own simulator, for which they choose a smaller problem.
SMALLER = ("cudapy.test_laplace", "cudapy.test_matmul")

_COMPILES = "asks the compiler for PTX and addresses, of dozens of kernels"

#: Tests that are not run: what they look at is not the interpreter's, or they take too long in it.
LEFT_OUT = {
    **{
        f"cudapy.test_array_alignment.TestArrayAddressAlignment.test_array_alignment_{rank}d": _COMPILES
        for rank in (1, 2, 3)
    },
    "cudapy.test_cache_hints.TestCacheHints": _COMPILES,
    "cudapy.test_libdevice.TestLibdeviceCompilation": "Numba's compiler alone, for each function of libdevice",
    "cudapy.test_intrinsics.TestCudaIntrinsic.test_issue_9229": "86,000 batches of threads that do next to nothing",
    "doc_examples.test_laplace.TestLaplace.test_ex_laplace": "the kernel of test_laplace again, as large",
    "doc_examples.test_random.TestRandom.test_ex_3d_grid": "454 million random numbers",
}

#: Reason -> module -> tests that fail, or classes of which all do.
EXCLUDED = {
    "asks the compiler: PTX, IR, SASS, registers, addresses, signatures it compiled, its options and warnings": {
        "cudadrv.test_cuda_ndarray": (
            "TestCudaNDArray.test_devicearray_typing_order_2d_c "
            "TestCudaNDArray.test_devicearray_typing_order_2d_f "
            "TestCudaNDArray.test_devicearray_typing_order_contig_slice_c "
            "TestCudaNDArray.test_devicearray_typing_order_contig_slice_f "
            "TestCudaNDArray.test_devicearray_typing_order_noncontig_slice_c "
            "TestCudaNDArray.test_devicearray_typing_order_noncontig_slice_f "
            "TestCudaNDArray.test_devicearray_typing_order_simple_c "
            "TestCudaNDArray.test_devicearray_typing_order_simple_f"
        ),
        "cudapy.test_array": "TestCudaArray.test_issue_4628",
        "cudapy.test_atomics": (
            "TestCudaAtomics.test_atomic_add_double TestCudaAtomics.test_atomic_add_double_2 "
            "TestCudaAtomics.test_atomic_add_double_3 TestCudaAtomics.test_atomic_add_double_global "
            "TestCudaAtomics.test_atomic_add_double_global_2 TestCudaAtomics.test_atomic_add_double_global_3"
        ),
        "cudapy.test_bfloat16_bindings": "Bfloat16Test.test_bf16_intrinsics_used_in_lto",
        "cudapy.test_constmem": (
            "TestCudaConstantMemory.test_const_array TestCudaConstantMemory.test_const_array_2d "
            "TestCudaConstantMemory.test_const_array_3d TestCudaConstantMemory.test_const_record "
            "TestCudaConstantMemory.test_const_record_align"
        ),
        "cudapy.test_cooperative_groups": (
            "TestCudaCooperativeGroups.test_false_cooperative_doesnt_link_cudadevrt "
            "TestCudaCooperativeGroups.test_max_cooperative_grid_blocks "
            "TestCudaCooperativeGroups.test_sync_at_matrix_row "
            "TestCudaCooperativeGroups.test_sync_group_is_cooperative "
            "TestCudaCooperativeGroups.test_this_grid_is_cooperative"
        ),
        "cudapy.test_cuda_array_interface": ("TestCudaArrayInterface.test_from_dtype_caching_distiguish_custom_dtypes"),
        "cudapy.test_device_func": (
            "TestDeviceFunc.test_inspect_asm TestDeviceFunc.test_inspect_llvm "
            "TestDeviceFunc.test_inspect_sass_disallowed"
        ),
        "cudapy.test_dispatcher": (
            "TestDispatcher.test_ambiguous_new_version TestDispatcher.test_capture_compile_config "
            "TestDispatcher.test_dispatcher_mark_launch_config_sensitive "
            "TestDispatcher.test_explicit_signatures_device_unsafe TestDispatcher.test_explicit_signatures_mixed "
            "TestDispatcher.test_explicit_signatures_signatures TestDispatcher.test_explicit_signatures_strings "
            "TestDispatcher.test_explicit_signatures_tuples "
            "TestDispatcher.test_launch_config_args_are_thread_local "
            "TestDispatcher.test_launch_config_available_during_compile TestDispatcherKernelProperties "
            "TestDispatcherSpecialization TestSharedMemoryCarveout.test_shared_memory_carveout_invalid_values"
        ),
        "cudapy.test_fastmath": (
            "TestFastMathOption.test_cosf TestFastMathOption.test_divf "
            "TestFastMathOption.test_exp2f TestFastMathOption.test_expf TestFastMathOption.test_log10f "
            "TestFastMathOption.test_log2f TestFastMathOption.test_logf TestFastMathOption.test_nextafterf "
            "TestFastMathOption.test_powf TestFastMathOption.test_sinf TestFastMathOption.test_tanf "
            "TestFastMathOption.test_tanhf"
        ),
        "cudapy.test_intrinsics": (
            "TestCudaIntrinsic.test_habs_ptx TestCudaIntrinsic.test_hadd_ptx TestCudaIntrinsic.test_hfma_ptx "
            "TestCudaIntrinsic.test_hmul_ptx TestCudaIntrinsic.test_hneg_ptx TestCudaIntrinsic.test_hsub_ptx "
            "TestCudaIntrinsic.test_selp"
        ),
        "cudapy.test_localmem": (
            "TestCudaLocalMem.test_local_array TestCudaLocalMem.test_numba_dtype "
            "TestCudaLocalMem.test_numpy_dtype TestCudaLocalMem.test_string_dtype"
        ),
        "cudapy.test_minmax": "TestCudaMinMax",
        "cudapy.test_operator": (
            "TestOperatorModule.test_fp16_abs_ptx TestOperatorModule.test_fp16_binary_ptx "
            "TestOperatorModule.test_fp16_comparison_ptx TestOperatorModule.test_fp16_inplace_binary_ptx "
            "TestOperatorModule.test_fp16_int8_comparison_ptx TestOperatorModule.test_fp16_neg_ptx "
            "TestOperatorModule.test_mixed_fp16_comparison_promotion_ptx"
        ),
        "cudapy.test_sm_creation": (
            "TestSharedMemoryCreation.test_numba_dtype TestSharedMemoryCreation.test_numpy_dtype "
            "TestSharedMemoryCreation.test_string_dtype"
        ),
        "cudapy.test_ssa": "TestSSA.test_undefined_var",
        "cudapy.test_sync": (
            "TestCudaSync.test_threadfence_block_codegen TestCudaSync.test_threadfence_codegen "
            "TestCudaSync.test_threadfence_system_codegen"
        ),
        "cudapy.test_warp_ops": (
            "TestCudaWarpOperations.test_shfl_sync_const_mode_val TestCudaWarpOperations.test_vote_sync_const_mode_val"
        ),
        "doc_examples.test_cg": "TestCooperativeGroups.test_ex_grid_sync",
    },
    "asks the CUDA driver, here or in a process of its own: contexts, its memory, its streams": {
        "cudadrv.test_context_stack": (
            "Test3rdPartyContext TestContextAPI.test_context_memory "
            "TestContextLeak.test_gpus_context_manager_does_not_leak "
            "TestContextLeak.test_gpus_context_manager_restores_previous_context"
        ),
        "cudadrv.test_cuda_array_slicing": "CudaArraySetting.test_sync",
        "cudadrv.test_cuda_devicerecord": "TestCudaDeviceRecord TestCudaDeviceRecordWithRecord",
        "cudadrv.test_cuda_memory": (
            "TestCudaMemory.test_derived_pointer TestCudaMemory.test_device_memory "
            "TestCudaMemory.test_device_view TestCudaMemory.test_host_alloc TestCudaMemory.test_managed_memory "
            "TestCudaMemory.test_pinned_memory TestCudaMemoryFunctions"
        ),
        "cudadrv.test_events": "TestCudaEvent.test_event_elapsed_cuda_core_stream",
        "cudadrv.test_host_alloc": (
            "TestHostAlloc.test_host_alloc_driver TestHostAlloc.test_host_alloc_mapped "
            "TestHostAlloc.test_host_alloc_pinned"
        ),
        "cudadrv.test_managed_alloc": (
            "TestManagedAlloc.test_managed_alloc_driver_host_attach "
            "TestManagedAlloc.test_managed_alloc_driver_undersubscribe"
        ),
        "cudapy.test_cuda_array_interface": (
            "TestCudaArrayInterface.test_consume_stream TestCudaArrayInterface.test_consume_sync "
            "TestCudaArrayInterface.test_launch_sync TestCudaArrayInterface.test_launch_sync_two_streams "
            "TestCudaArrayInterface.test_ownership"
        ),
        "cudapy.test_errors": "TestStringArgCompileTime.test_string_device_function_arg_compiles_quickly",
        "cudapy.test_multithreads": "TestMultiThreadCompiling.test_spawn_concurrent_compilation",
        "cudapy.test_stream_api": "TestStreamAPI.test_external_stream_create",
    },
    "links C++ or PTX, or takes C pointers: there is no source to interpret": {
        "cudapy.test_array": "TestCudaArray.test_carray TestCudaArray.test_farray",
        "cudapy.test_cooperative_groups": "TestCudaCooperativeGroups.test_external_cooperative_func",
        "cudapy.test_device_func": (
            "TestDeclareDevice.test_call_declared_function_twice "
            "TestDeclareDevice.test_call_two_different_declared_functions "
            "TestDeclareDevice.test_declared_in_called_function "
            "TestDeclareDevice.test_declared_in_called_function_and_parent "
            "TestDeclareDevice.test_declared_in_called_function_twice "
            "TestDeclareDevice.test_declared_in_called_function_two_calls TestDeclareDevice.test_link_cu_source "
            "TestDeclareDevice.test_link_multiple_sources_list TestDeclareDevice.test_link_multiple_sources_set "
            "TestDeclareDevice.test_link_multiple_sources_tuple "
            "TestDeclareDevice.test_link_sources_in_memory_and_on_disk TestDeclareDeviceCABI"
        ),
        "cudapy.test_dispatcher": "TestDispatcher.test_dispatcher_cpointer_arguments",
    },
    "a ufunc that Numba's vectoriser makes, over the driver's memory or the compiler's overloads": {
        "cudapy.test_cuda_array_interface": (
            "TestCudaArrayInterface.test_gufunc_arg TestCudaArrayInterface.test_ufunc_arg"
        ),
        "cudapy.test_enums": "EnumTest.test_vectorize",
        "cudapy.test_gufunc": (
            "TestCUDAGufunc.test_copy TestCUDAGufunc.test_copy2d TestCUDAGufunc.test_copy_odd "
            "TestCUDAGufunc.test_copy_unspecified_return TestCUDAGufunc.test_gufunc_new_axis "
            "TestCUDAGufunc.test_inefficient_launch_configuration TestCUDAGufunc.test_not_supported_call_from_jit "
            "TestMultipleOutputs.test_multiple_output_allocation TestMultipleOutputs.test_multiple_output_dtypes "
            "TestMultipleOutputs.test_multiple_outputs_distinct_values "
            "TestMultipleOutputs.test_multiple_outputs_same_type_passed_in"
        ),
        "cudapy.test_gufunc_scalar": (
            "TestGUFuncScalar.test_gufunc_old_style_scalar_as_array TestGUFuncScalar.test_gufunc_scalar_cast "
            "TestGUFuncScalar.test_gufunc_scalar_input_saxpy TestGUFuncScalar.test_gufunc_scalar_output_bug"
        ),
        "cudapy.test_vectorize": "TestCUDAVectorize",
        "cudapy.test_vectorize_complex": "TestVectorizeComplex.test_vectorize_complex",
        "cudapy.test_vectorize_decor": (
            "TestGPUVectorizeBroadcast.test_broadcast TestGPUVectorizeBroadcast.test_device_broadcast "
            "TestVectorizeDecor TestVectorizeNopythonArg.test_target_cuda_nopython"
        ),
        "cudapy.test_vectorize_device": "TestCudaVectorizeDeviceCall.test_cuda_vectorize_device_call",
        "cudapy.test_vectorize_scalar_arg": (
            "TestCUDAVectorizeScalarArg.test_vectorize_all_scalars TestCUDAVectorizeScalarArg.test_vectorize_scalar_arg"
        ),
    },
    "types, functions and conversions of arguments that are added to Numba through its extension API": {
        "cudapy.test_localmem": (
            "TestCudaLocalMem.test_struct_model_type_arr TestCudaLocalMem.test_type_with_struct_data_model"
        ),
        "cudapy.test_retrieve_autoconverted_arrays": "TestRetrieveAutoconvertedArrays",
        "cudapy.test_sm_creation": "TestSharedMemoryCreation.test_type_with_struct_data_model",
        "cudapy.test_ssa": "TestReportedSSAIssues.test_issue3976 TestReportedSSAIssues.test_issue5219",
    },
    "stopped for a hazard that is there: barriers that some named threads never reach": {
        "cudapy.test_reduction": "TestReduction.test_max_reduce TestReduction.test_sum_reduce",
        "doc_examples.test_montecarlo": "TestMonteCarlo.test_ex_montecarlo",
        "doc_examples.test_sessionize": "TestSessionization.test_ex_sessionize",
    },
    "says what Numba says, mostly a refusal, in other words": {
        "cudadrv.test_cuda_ndarray": "TestCudaNDArray.test_devicearray_transpose_wrongdim",
        "cudadrv.test_detect": "TestCudaDetect.test_cuda_detect",
        "cudapy.test_array_alignment": "TestArrayAddressAlignment.test_invalid_aligments",
        "cudapy.test_device_func": "TestDeviceFunc.test_device_func_as_kernel_disallowed",
        "cudapy.test_dispatcher": (
            "TestLaunchBounds.test_launch_bounds_scalar TestLaunchBounds.test_launch_bounds_tuple "
            "TestLaunchBounds.test_launch_bounds_with_max_cluster_rank "
            "TestLaunchBounds.test_launch_bounds_with_min_cta"
        ),
        "cudapy.test_errors": (
            "TestJitErrors.test_non_integral_dims TestJitErrors.test_too_many_dims "
            "TestJitErrors.test_typing_error TestJitErrors.test_unconfigured_typed_cudakernel "
            "TestJitErrors.test_unconfigured_untyped_cudakernel"
        ),
        "cudapy.test_forall": "TestForAll.test_forall_negative_work",
        "cudapy.test_intrinsics": (
            "TestCudaIntrinsic.test_nonliteral_grid_error TestCudaIntrinsic.test_nonliteral_gridsize_error"
        ),
        "cudapy.test_sm": "TestSharedMemory.test_invalid_array_type",
        "cudapy.test_sm_creation": (
            "TestSharedMemoryCreation.test_global_build_list TestSharedMemoryCreation.test_invalid_1 "
            "TestSharedMemoryCreation.test_invalid_2 TestSharedMemoryCreation.test_invalid_3 "
            "TestSharedMemoryCreation.test_invalid_4"
        ),
    },
    "host API that is not provided: strided and broadcast copies, strides of array-likes, streams of arrays": {
        "cudadrv.test_cuda_ndarray": (
            "TestCudaNDArray.test_devicearray_contiguous_copy_device "
            "TestCudaNDArray.test_devicearray_contiguous_device_strided "
            "TestCudaNDArray.test_devicearray_contiguous_slice "
            "TestCudaNDArray.test_devicearray_typing_order_broadcasted TestCudaNDArray.test_stream_bind"
        ),
        "cudapy.test_array": (
            "TestCudaArray.test_array_like_2d_f TestCudaArray.test_array_like_2d_f_transpose "
            "TestCudaArray.test_array_like_2d_view_f TestCudaArray.test_array_like_3d_f"
        ),
        "cudapy.test_cuda_array_interface": (
            "TestCudaArrayInterface.test_as_cuda_array TestCudaArrayInterface.test_produce_managed_no_stream "
            "TestCudaArrayInterface.test_produce_managed_stream TestCudaArrayInterface.test_produce_no_stream "
            "TestCudaArrayInterface.test_produce_stream"
        ),
    },
    "Numba refuses it while it infers types; the interpreter does so when it runs it, or not at all": {
        "cudapy.test_alignment": "TestAlignment.test_record_alignment_error",
        "cudapy.test_device_func": "TestDeviceFunc.test_cpu_dispatcher_invalid",
        "cudapy.test_recursion": "TestSelfRecursion.test_growing_return_tuple TestSelfRecursion.test_runaway",
        "cudapy.test_warp_ops": "TestCudaWarpOperations.test_vote_sync_type_validation",
    },
    "raise in a kernel ends the launch as a SimtError that names thread and line, not as the exception itself": {
        "cudapy.test_exception": "TestException.test_user_raise",
        "cudapy.test_userexc": "TestUserExc.test_user_exception",
    },
    "debug=True, with which Numba raises for a division by zero and an index beyond a tuple, changes nothing here": {
        "cudapy.test_exception": "TestException.test_exception TestException.test_zero_division_error_in_debug",
        "cudapy.test_fastmath": "TestFastMathOption.test_divf_exception",
    },
    "methods and functions of whole arrays in a kernel (copy, all, sum, mean, ...), on Numba's runtime for memory": {
        "cudapy.test_array_methods": "TestCudaArrayMethods.test_array_copy",
        "cudapy.test_array_reductions": "TestArrayReductions",
    },
    "how a declared signature treats arguments of other types: here arrays must fit it, and scalars are converted": {
        "cudapy.test_atomics": "TestCudaAtomics.test_atomic_sub3",
        "cudapy.test_dispatcher": (
            "TestDispatcher.test_coerce_input_types_unsafe "
            "TestDispatcher.test_explicit_signatures_ambiguous_resolution "
            "TestDispatcher.test_explicit_signatures_device "
            "TestDispatcher.test_explicit_signatures_same_type_class"
        ),
    },
}
