// <hip/hip_vector_types.h> on NVIDIA.
#pragma once
#include "../../kvc_hip_cuda.h"
